#!/usr/bin/env python3
"""deltafold soup: a trainer's directory watched, merged, measured; killed at random moments; interrupted.
Usage: soup_test.py DELTAFOLD [unittest arguments]"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "demo" / "zen-mini-base"
BINARY = None
RUN_S = 300
N_KILLS = 6
# Lower is better, and known at once: the first hexadecimal digits of the weights' checksum.
SUM = "printf '%d\\n' 0x$(sha256sum {model}/model.safetensors | cut -c1-8)"


class Soup(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="deltafold-soup-")))
        self.run_folder, self.out = self.folder / "run", self.folder / "out"
        self.run_folder.mkdir()

    def add(self, step, model, whole=True):
        path = self.run_folder / f"checkpoint-{step}"
        shutil.copytree(ROOT / "demo" / "finetunes" / f"zen-mini-{model}", path)
        if whole:
            (path / "trainer_state.json").write_text("{}")
        else:  # copies are as old as what they are of; this one is being written, however long the test takes
            os.utime(path / "config.json", (time.time() + 1e6,) * 2)
        return path

    def command(self, *arguments):
        return [BINARY, "soup", "--watch", str(self.run_folder), "--base", str(BASE), "--out", str(self.out), "--settle", "0",
                *map(str, arguments)]

    def soup(self, *arguments):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=RUN_S,
                              stdin=subprocess.DEVNULL)

    def report(self, *arguments):
        done = self.soup(*arguments, "--once", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_checkpoints_of_a_trainer_without_a_tokenizer_are_asked_with_the_bases(self):
        measure = ["--eval-questions", ROOT / "demo" / "eval" / "math.jsonl", "--items", 8, "--metric", "cross-entropy", "--rank", 16]
        folders = [self.add(10, "sql"), self.add(20, "math")]
        scores = [(step["newest"], step["merged"]) for step in self.report(*measure)["steps"]]
        shutil.rmtree(self.out)
        for folder in folders:
            for path in (*folder.glob("tokenizer*"), *folder.glob("*.jinja")):
                path.unlink()
            self.assertFalse((folder / "tokenizer.json").exists())
        self.assertEqual([(step["newest"], step["merged"]) for step in self.report(*measure)["steps"]], scores)

    def test_once_takes_what_is_there_and_the_next_call_goes_on(self):
        measure = ["--eval-questions", ROOT / "demo" / "eval" / "math.jsonl", "--items", 20, "--metric", "cross-entropy",
                   "--rank", 16, "--plot", self.folder / "curve.svg"]
        nothing_yet = self.soup(*measure, "--once", "--json")
        self.assertEqual((nothing_yet.returncode, json.loads(nothing_yet.stdout)["best"]), (1, None))
        self.add(10, "sql")
        report = self.report(*measure)
        self.assertEqual([step["kept"] for step in report["steps"]], ["newest"])
        self.add(20, "math")
        self.add(30, "coder", whole=False)
        report = self.report(*measure)
        self.assertEqual([step["step"] for step in report["steps"]], [10, 20])
        second = report["steps"][1]
        self.assertEqual((second["kept"], second["best"]), ("newest", second["newest"]))
        self.assertGreater(second["merged"], second["newest"])
        self.assertEqual(second["method"], "svd_average rank=16")
        self.assertEqual([left["checkpoint"] for left in report["waiting"]], ["checkpoint-30"])
        self.assertEqual((report["better"], report["best"]["score"]), ("lower", second["newest"]))
        self.assertIn("<svg", (self.folder / "curve.svg").read_text())
        self.assertEqual((self.out / "best" / "model.safetensors").read_bytes(),
                         (self.run_folder / "checkpoint-20" / "model.safetensors").read_bytes())

        done = self.soup(*measure, "--once")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"step +checkpoint +newest +merged +best +kept")
        self.assertIn("answers' cross entropy, math.jsonl", done.stdout)
        self.assertIn("trainer_state.json", done.stderr)

    def test_text_and_adapters(self):
        text = ["--eval-text", ROOT / "demo" / "eval" / "text.txt", "--text-tokens", 256, "--method", "linear"]
        adapter = self.run_folder / "checkpoint-5"
        shutil.copytree(ROOT / "demo" / "adapters" / "format-title", adapter)
        (adapter / "trainer_state.json").write_text("{}")
        self.add(10, "sql")
        report = self.report(*text)
        self.assertEqual([step["checkpoint"] for step in report["steps"]], ["checkpoint-5", "checkpoint-10"])
        self.assertTrue(all(step["newest"] > 1 for step in report["steps"]))
        self.assertIsNotNone(report["steps"][1]["merged"], report["steps"][1]["note"])
        inspected = subprocess.run([BINARY, "inspect", str(self.out / "best")], capture_output=True, text=True, timeout=RUN_S)
        self.assertEqual(inspected.returncode, 0, inspected.stderr)

    def test_what_cannot_be_meant_is_wrong_usage_and_what_fails_is_named(self):
        for arguments, words in (([], "nothing to measure"), (["--eval-command", "echo {model}"], "lower or higher"),
                                 (["--eval-command", "echo 1", "--better", "lower"], "{model}"),
                                 (["--eval-text", "t", "--metric", "x"], "--metric"),
                                 (["--set", "rank"], "NAME=VALUE"), (["--set", "rank=x"], "no number"),
                                 (["--settle", "nan"], "seconds|--settle")):
            done = self.soup("--once", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr, words)
        self.assertFalse(self.out.exists())
        self.add(10, "sql")
        done = self.soup("--once", "--eval-command", "echo out of memory >&2; ls {model}/absent", "--better", "lower")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("out of memory", done.stderr)
        self.assertIn("checkpoint-10", done.stderr)
        done = self.soup("--once", "--eval-command", SUM, "--better", "lower", "--method", "average")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("svd_average", done.stderr)

    def test_scores_that_cannot_be_used_leave_no_best_and_say_so(self):
        self.add(10, "sql")
        for score in ("nan", "1e999"):
            self.out = self.folder / f"out-{score}"
            done = self.soup("--once", "--eval-command", f"echo {score} #{{model}}", "--better", "lower")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stdout, r"checkpoint-10 +- +- +- +nothing")
            self.assertRegex(done.stderr, r"nothing was kept, there is no best.*checkpoint-10.*nan or infinite")
            self.assertFalse((self.out / "best").exists())

    def test_no_checkpoint_and_an_empty_text_are_failures(self):
        done = self.soup("--once", "--eval-command", SUM, "--better", "lower")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "there is no best: 0 checkpoints in .* are not whole, and there are no others")
        empty = self.folder / "empty.txt"
        empty.write_text("")
        self.add(10, "sql")
        done = self.soup("--once", "--eval-text", empty)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, "empty.txt is empty")

    def test_a_watch_takes_what_comes_and_ends_cleanly_when_it_is_interrupted(self):
        self.add(10, "sql")
        process = subprocess.Popen(self.command("--eval-command", SUM, "--better", "lower", "--rank", "2", "--poll", "0.05"),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        path = self.run_folder / "checkpoint-20"
        path.mkdir()
        for file in sorted((ROOT / "demo" / "finetunes" / "zen-mini-math").iterdir()):  # as a trainer writes
            content = file.read_bytes()
            with open(path / file.name, "wb") as to:
                to.write(content[:len(content) // 2])
                to.flush()
                time.sleep(0.1)
                to.write(content[len(content) // 2:])
        (path / "trainer_state.json").write_text("{}")
        journal = self.out / "soup.jsonl"
        deadline = time.monotonic() + RUN_S
        while not journal.exists() or journal.read_text().count('"event":"step"') < 2:
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=RUN_S)
        self.assertEqual(process.returncode, -signal.SIGINT, err)
        self.assertIn("checkpoint-20", out)
        self.assertNotIn("not merged", err)
        self.assertEqual(len(list((self.out / "checkpoints").iterdir())), 1)

    def state(self):
        lines = [json.loads(line) for line in (self.out / "soup.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines if line["event"] == "step"]

    def test_killed_at_random_moments_it_comes_to_the_same(self):
        for step, model in ((10, "sql"), (20, "math"), (30, "coder")):
            self.add(step, model)
        arguments = ["--eval-command", "sleep 0.05; " + SUM, "--better", "lower", "--rank", "4", "--once"]
        start = time.monotonic()
        self.assertEqual(self.soup(*arguments).returncode, 0)
        seconds, expected = time.monotonic() - start, self.state()
        weights = (self.out / "best" / "model.safetensors").read_bytes()
        moments, n_kills = random.Random(7), 0
        for _ in range(10 * N_KILLS):
            shutil.rmtree(self.out)
            process = subprocess.Popen(self.command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(seconds * moments.random())
            process.kill()
            n_kills += process.wait() == -signal.SIGKILL
            if os.path.lexists(self.out / "best"):
                self.assertTrue((self.out / "best" / "model.safetensors").is_file())
            done = self.soup(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.state(), expected)
            self.assertEqual((self.out / "best" / "model.safetensors").read_bytes(), weights)
            self.assertEqual(len(list((self.out / "checkpoints").iterdir())), 1)
            if n_kills == N_KILLS:
                return
        self.fail(f"only {n_kills} runs were killed before they ended")


if __name__ == "__main__":
    BINARY = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
