#!/usr/bin/env python3
"""The command line as a user meets it: exit codes, one cause a failure, complete help, whole files or none.
Usage: cli_test.py DELTAFOLD [unittest arguments]"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "demo" / "zen-mini-base"
FINETUNE = ROOT / "demo" / "finetunes" / "zen-mini-math"
BINARY = None
RUN_S = 120


def deltafold(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=RUN_S,
                          stdin=subprocess.DEVNULL)


def commands():
    listed = deltafold("--help").stdout.split("Subcommands:")[1]
    return re.findall(r"^  (\w+) ", listed, re.MULTILINE)


class Usage(unittest.TestCase):
    def test_version_is_one_line(self):
        done = deltafold("version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"\Adeltafold \d+\.\d+\.\d+\n")

    def test_every_command_has_help_with_examples(self):
        for command in commands():
            if command == "version":
                continue
            with self.subTest(command):
                done = deltafold(command, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("Examples:", done.stdout)

    def test_an_unknown_command_exits_2_and_suggests_the_nearest(self):
        done = deltafold("comprss")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("comprss", done.stderr)
        self.assertIn("compress", done.stderr)

    def test_an_unknown_flag_exits_2_and_suggests_the_nearest(self):
        done = deltafold("compress", "--scalee", "row")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("did you mean --scale", done.stderr)

    def test_a_wrong_vector_target_is_reported_by_name(self):
        done = subprocess.run([BINARY, "version"], capture_output=True, text=True, timeout=RUN_S,
                              env=dict(os.environ, DELTAFOLD_TARGET="avx9000"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("avx9000", done.stderr)


class Deltas(unittest.TestCase):
    """compress, verify and materialize on the family of the demonstration."""

    @classmethod
    def setUpClass(cls):
        cls.directory = Path(tempfile.mkdtemp(prefix="deltafold-cli-"))
        cls.delta = cls.directory / "math"
        done = deltafold("compress", "--base", BASE, "--model", FINETUNE, "--out", cls.delta, "--json")
        assert done.returncode == 0, done.stderr
        cls.report = json.loads(done.stdout)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory)

    def assert_fails(self, done, *words):
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)

    def test_a_delta_is_a_fifth_of_the_toy_whose_embeddings_are_exact(self):
        share = (self.delta / "delta_model.safetensors").stat().st_size / (FINETUNE / "model.safetensors").stat().st_size
        self.assertLess(share, 0.21)

    def test_side_files_that_equal_the_base_are_not_stored(self):
        self.assertEqual(sorted(p.name for p in self.delta.iterdir()),
                         ["README.md", "config.json", "delta_config.json", "delta_model.safetensors"])

    def test_compressing_twice_gives_the_same_bytes(self):
        again = self.directory / "again"
        self.assertEqual(deltafold("compress", BASE, FINETUNE, again, "--threads", 1).returncode, 0)
        name = "delta_model.safetensors"
        self.assertEqual((again / name).read_bytes(), (self.delta / name).read_bytes())

    def test_an_existing_output_is_kept_unless_forced(self):
        self.assert_fails(deltafold("compress", BASE, FINETUNE, self.delta), self.delta, "--force")
        forced = self.directory / "forced"
        for arguments in ([], ["--force"]):
            self.assertEqual(deltafold("compress", BASE, FINETUNE, forced, *arguments).returncode, 0)

    def test_a_missing_model_is_named_and_nothing_is_written(self):
        out = self.directory / "none"
        self.assert_fails(deltafold("compress", BASE, self.directory / "absent", out), self.directory / "absent")
        self.assertFalse(out.exists())

    def test_verify_accepts_it_and_measures_against_the_fine_tune(self):
        self.assertEqual(deltafold("verify", self.delta, "--base", BASE).returncode, 0)
        done = deltafold("verify", self.delta, "--base", BASE, "--model", FINETUNE, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIsInstance(json.loads(done.stdout), dict)

    def test_verify_refuses_another_base(self):
        done = deltafold("verify", self.delta, "--base", FINETUNE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("base", done.stderr)

    def test_verify_refuses_a_flipped_bit(self):
        damaged = self.directory / "damaged"
        shutil.copytree(self.delta, damaged)
        with open(damaged / "delta_model.safetensors", "r+b") as weights:
            weights.seek(-100, os.SEEK_END)
            byte = weights.read(1)[0]
            weights.seek(-1, os.SEEK_CUR)
            weights.write(bytes([byte ^ 1]))
        done = deltafold("verify", damaged, "--base", BASE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("digest", done.stderr)

    def test_materialize_gives_a_checkpoint_whose_delta_has_the_same_signs(self):
        full, again = self.directory / "full", self.directory / "full-delta"
        done = deltafold("materialize", "--base", BASE, "--delta", self.delta, "--out", full, "--dtype", "f32")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(deltafold("compress", BASE, full, again).returncode, 0)

        def signs(path):
            data = (path / "delta_model.safetensors").read_bytes()
            n_header = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + n_header])
            return {name: data[8 + n_header + tensor["data_offsets"][0]:8 + n_header + tensor["data_offsets"][1]]
                    for name, tensor in header.items() if name.endswith(".sign")}
        self.assertEqual(len(signs(again)), 28)
        self.assertEqual(signs(again), signs(self.delta))


if __name__ == "__main__":
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
