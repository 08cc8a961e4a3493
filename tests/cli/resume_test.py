#!/usr/bin/env python3
"""kill -9 at random moments of a compression: nothing half done under the target's name, and --resume gives the bytes
of a run that was not killed. Usage: resume_test.py DELTAFOLD [unittest arguments]"""
import json
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "demo" / "zen-mini-base"
FINETUNE = ROOT / "demo" / "finetunes" / "zen-mini-math"
BINARY = None
RUN_S = 300
N_KILLS = 10
SHARDS = 3
# Decompositions and measurements of all codes: long enough to be met in every part.
RECIPE = ["--code", "auto", "--bytes", "1.6bpw", "--calibrate", "none"]


def command(*arguments):
    return [BINARY, "compress", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=RUN_S, stdin=subprocess.DEVNULL)


def files(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def read_safetensors(path):
    data = path.read_bytes()
    n_header = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n_header])
    header.pop("__metadata__", None)
    return {name: (entry, data[8 + n_header:][slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (entry, data) in tensors.items():
        header[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def shard(model, directory):
    """The same checkpoint in several files."""
    shutil.copytree(model, directory)
    (directory / "model.safetensors").unlink()
    tensors = list(read_safetensors(model / "model.safetensors").items())
    places = {}
    for i in range(SHARDS):
        name = f"model-{i + 1:05}-of-{SHARDS:05}.safetensors"
        part = dict(tensors[i::SHARDS])
        write_safetensors(directory / name, part)
        places.update(dict.fromkeys(part, name))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


class KilledRuns(unittest.TestCase):
    """A recipe's bytes, and ways to be killed on the way to them."""
    recipe = RECIPE

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="deltafold-resume-")
        self.addCleanup(directory.cleanup)
        self.place = Path(directory.name)
        self.base, self.model, self.out = self.place / "base", self.place / "model", self.place / "out"
        shard(BASE, self.base)
        shard(FINETUNE, self.model)
        start = time.monotonic()
        done = run(self.base, self.model, self.out, *self.recipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.seconds = time.monotonic() - start
        self.expected = files(self.out)
        shutil.rmtree(self.out)

    def left(self):
        return [path for path in self.place.iterdir() if path.name.startswith("out")]

    def kill_after(self, seconds, *arguments):
        """Whether the run was still at work."""
        process = subprocess.Popen(command(self.base, self.model, self.out, *self.recipe, *arguments),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.kill()
        return process.wait() == -signal.SIGKILL

    def finish(self):
        done = run(self.base, self.model, self.out, *self.recipe, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(files(self.out), self.expected)
        self.assertEqual(self.left(), [self.out])
        shutil.rmtree(self.out)

    def killed_at_random_moments(self, n_wanted):
        moments, n_kills = random.Random(6), 0
        for _ in range(10 * n_wanted):
            killed = self.kill_after(self.seconds * moments.random())
            n_kills += killed
            if killed:
                self.assertFalse(self.out.exists() and not files(self.out) == self.expected)
            shutil.rmtree(self.out, ignore_errors=True)
            self.finish()
            if n_kills == n_wanted:
                return
        self.fail(f"only {n_kills} runs were killed before they ended")


class FittedKills(KilledRuns):
    """As `compress` works unless told otherwise: it writes a text, fits to it, and what is encoded feeds what follows."""
    recipe = []

    def test_at_ten_random_moments(self):
        self.killed_at_random_moments(N_KILLS)


class FittedChoiceKills(KilledRuns):
    """A survey and an encoding pass over a text that is given."""
    recipe = ["--code", "auto", "--calibrate", str(ROOT / "demo" / "eval" / "math.jsonl")]

    def test_at_random_moments(self):
        self.killed_at_random_moments(4)


class Kills(KilledRuns):
    def test_shards_make_no_difference(self):
        done = run("--base", BASE, "--model", FINETUNE, "--out", self.out, *self.recipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        name = "delta_model.safetensors"
        self.assertEqual((self.out / name).read_bytes(), self.expected[name])

    def test_at_ten_random_moments(self):
        self.killed_at_random_moments(N_KILLS)

    def test_again_and_again_until_it_is_done(self):
        n_kills = 0
        while self.kill_after(self.seconds / 4, "--resume"):
            n_kills += 1
            self.assertLess(n_kills, 200, "no run comes further than the one before")
        self.assertEqual(files(self.out), self.expected)

    def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(self):
        process = subprocess.Popen(command(self.base, self.model, self.out, *self.recipe), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not any((path / "delta_journal").exists() and
                                                 (path / "delta_journal").read_text().count("\n") > 3
                                                 for path in self.left()):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        message = process.communicate(timeout=RUN_S)[1]
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn("--resume", message)
        other = run(self.base, self.model, self.out, "--code", "row", "--calibrate", "none", "--resume")
        self.assertEqual(other.returncode, 1)
        self.assertIn("did something else", other.stderr)
        self.finish()

    def test_a_dry_run_writes_nothing_and_says_what_the_real_one_writes(self):
        unfitted = ["--calibrate", "none"]
        for recipe in (["--code", "scalar", *unfitted], ["--code", "planes2", "--embeddings", "int8", *unfitted]):
            done = run(self.base, self.model, self.out, *recipe, "--dry-run", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.left(), [])
            estimate = json.loads(done.stdout)["asked"]
            self.assertTrue(estimate["exact"])
            real = json.loads(run(self.base, self.model, self.out, *recipe, "--json").stdout)
            self.assertEqual(real["bytes"]["delta"], estimate["bytes"])
            shutil.rmtree(self.out)
        fitted = ["--code", "planes2", "--embeddings", "int8"]
        estimate = json.loads(run(self.base, self.model, self.out, *fitted, "--dry-run", "--json").stdout)["asked"]
        real = json.loads(run(self.base, self.model, self.out, *fitted, "--json").stdout)
        self.assertFalse(estimate["exact"])
        self.assertEqual(real["bytes"]["delta"], estimate["bytes"])
        self.assertLess(estimate["bytes"], estimate["at_most_bytes"])
        shutil.rmtree(self.out)
        table = run(self.base, self.model, self.out, "--dry-run").stdout
        for word in ("rank1", "scalar", "lowrank:16", "unchanged", "Nothing was written"):
            self.assertIn(word, table)


if __name__ == "__main__":
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
