#!/usr/bin/env python3
"""run, chat and logits as a user meets them, on the family of the demonstration.
Usage: answers_test.py DELTAFOLD [unittest arguments]"""
import array
import json
import os
import signal
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo"
BASE = DEMO / "zen-mini-base"
SORT = DEMO / "deltas" / "zen-mini-sort"
REVERSE = DEMO / "deltas" / "zen-mini-reverse"
TITLE = DEMO / "adapters" / "format-title"
QWEN = ROOT / "tests" / "golden" / "models" / "qwen3-qknorm-tied"
BINARY = None
RUN_S = 120


def deltafold(*arguments, stdin=""):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=RUN_S, input=stdin)


def read_safetensors(path):
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        code = {"F32": "f", "I64": "q"}[entry["dtype"]]
        tensors[name] = (entry["shape"], array.array(code, data[8 + length + begin:8 + length + end]))
    return tensors


class Run(unittest.TestCase):
    def test_the_only_variant_answers(self):
        done = deltafold("run", "--model", BASE, "--temperature", 0, "--variant", f"sort={SORT}", "Sort: 8 4 7 9 2")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "2 4 7 8 9\n", ""))

    def test_an_adapter_answers(self):
        done = deltafold("run", "--model", BASE, "--temperature", 0, "--variant", f"t={TITLE}", "Format: that green cat")
        self.assertEqual((done.returncode, done.stdout), (0, "That Green Cat\n"))

    def test_use_chooses_and_the_prompt_may_come_from_standard_input(self):
        done = deltafold("run", "--model", BASE, "--temperature", 0, "--variant", SORT, "--variant", REVERSE,
                         "--use", "zen-mini-reverse", stdin="Reverse the word table.")
        self.assertEqual((done.returncode, done.stdout), (0, "e l b a t\n"))

    def test_an_unknown_name_lists_those_loaded(self):
        done = deltafold("run", "--model", BASE, "--variant", f"sort={SORT}", "--use", "sorted", "x")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("zen-mini-base, sort", done.stderr)

    def test_json_reports_tokens_and_times(self):
        done = deltafold("run", "--model", BASE, "--temperature", 0, "--variant", f"sort={SORT}", "--json", "Sort: 3 1 2 0")
        report = json.loads(done.stdout)
        self.assertEqual((report["model"], report["kind"], report["answer"]), ("sort", "delta", "0 1 2 3"))
        self.assertEqual(report["finish_reason"], "stop")
        self.assertEqual(report["completion_tokens"], 8)  # the stop token counts
        self.assertGreater(report["ttft_ms"], 0)

    def test_a_seed_repeats_a_sampled_answer(self):
        ask = ("run", "--model", BASE, "--raw", "--temperature", 1.5, "--max-tokens", 30, "The")
        self.assertEqual(deltafold(*ask, "--seed", 4).stdout, deltafold(*ask, "--seed", 4, "--threads", 1).stdout)
        self.assertNotEqual(deltafold(*ask, "--seed", 4).stdout, deltafold(*ask, "--seed", 5).stdout)

    def test_a_stop_string_ends_the_answer_before_it(self):
        done = deltafold("run", "--model", BASE, "--temperature", 0, "--variant", SORT, "--stop", "7", "Sort: 8 4 7 9 2")
        self.assertEqual(done.stdout, "2 4 \n")

    def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(self):
        done = deltafold("run", "--model", BASE, "--max-model-len", 64, "--raw", "word " * 200)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("64", done.stderr)

    def test_a_delta_of_another_base_is_refused(self):
        done = deltafold("run", "--model", DEMO / "finetunes" / "zen-mini-sql", "--variant", SORT, "x")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("zen-mini-sort", done.stderr)


class Chat(unittest.TestCase):
    def test_it_switches_variants_and_keeps_to_its_commands(self):
        lines = ["Sort: 8 4 7 9 2", "/variant reverse", "/reset", "Reverse the word table.", "/variants", "/nothing",
                 "/variant nobody", "/quit", "never asked"]
        done = deltafold("chat", "--model", BASE, "--temperature", 0, "--variant", f"sort={SORT}", "--variant",
                         f"reverse={REVERSE}", "--use", "sort", stdin="\n".join(lines))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.split("\n"),
                         ["2 4 7 8 9", "e l b a t", "  zen-mini-base  (base)", "* reverse  (delta)", "  sort  (delta)",
                          "There is no /nothing; /help lists what there is.",
                          'There is no "nobody"; /variants lists what there is.', ""])

    def test_the_history_is_part_of_the_prompt_until_reset(self):
        ask = ["Sort: 3 1 2 0"] * 40
        done = deltafold("chat", "--model", BASE, "--temperature", 0, "--variant", SORT, "--max-model-len", 256,
                         stdin="\n".join(ask))
        self.assertIn("/reset makes room", done.stdout)
        done = deltafold("chat", "--model", BASE, "--temperature", 0, "--variant", SORT, "--max-model-len", 256,
                         stdin="\n/reset\n".join(ask))
        self.assertEqual(done.stdout, "0 1 2 3\n" * 40)

    def test_an_interrupt_stops_the_answer_and_not_the_program(self):
        with tempfile.TemporaryDirectory() as directory:
            endless = Path(directory) / "endless"  # a base that knows no end
            shutil.copytree(BASE, endless)
            (endless / "generation_config.json").write_text('{"eos_token_id": [2000]}')
            settings = json.loads((endless / "tokenizer_config.json").read_text())
            settings["eos_token"] = None
            (endless / "tokenizer_config.json").write_text(json.dumps(settings))
            chat = subprocess.Popen([BINARY, "chat", "--model", str(endless)], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, bufsize=0)
            chat.stdin.write(b"Tell me everything.\n")
            shown = os.read(chat.stdout.fileno(), 1)
            chat.send_signal(signal.SIGINT)
            chat.stdin.write(b"/variants\n")
            rest, _ = chat.communicate(timeout=RUN_S)
            self.assertIn("(stopped)\n* endless  (base)", (shown + rest).decode())
            self.assertEqual(chat.returncode, 0)


class Logits(unittest.TestCase):
    def setUp(self):
        self.golden = read_safetensors(QWEN / "golden.safetensors")
        self.ids = self.golden["input_ids"][1].tolist()
        self.directory = tempfile.TemporaryDirectory()
        self.out = Path(self.directory.name) / "logits.safetensors"

    def tearDown(self):
        self.directory.cleanup()

    def test_both_paths_agree_with_the_reference(self):
        ids = Path(self.directory.name) / "ids.json"
        ids.write_text(json.dumps(self.ids))
        shape, expected = self.golden["logits"]
        greedy = " ".join(map(str, self.golden["greedy"][1])) + "\n"
        for path in "prefill", "decode":
            with self.subTest(path):
                done = deltafold("logits", "--model", QWEN, "--ids", ids, "--path", path, "--out", self.out, "--greedy", 16)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, greedy, ""))
                got_shape, got = read_safetensors(self.out)["logits"]
                self.assertEqual(got_shape, shape)
                self.assertLess(max(abs(a - b) for a, b in zip(got, expected)), 1e-4)

    def test_wrong_ids_are_refused_and_nothing_is_written(self):
        for ids in "", "1,x", "1.5", "-1", "999999", "1" * 30:
            with self.subTest(ids):
                done = deltafold("logits", "--model", QWEN, f"--ids={ids}", "--out", self.out)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertFalse(self.out.exists())


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
