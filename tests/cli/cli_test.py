#!/usr/bin/env python3
"""The command line as a user meets it: exit codes, one cause a failure, complete help, whole files or none.
Usage: cli_test.py DELTAFOLD [unittest arguments]"""
import json
import os
import re
import resource
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


class FullDisk(unittest.TestCase):
    def test_a_lost_report_is_a_failure(self):
        for arguments in (["version"], ["compress", "--help"], ["inspect", BASE], ["inspect", BASE, "--json"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w") as full:
                done = subprocess.run([BINARY, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=RUN_S)
                self.assertEqual(done.returncode, 1)
                self.assertIn("standard output", done.stderr)


class ScarceMemory(unittest.TestCase):
    """Too little address space ends every command with a cause, at whatever point it runs out."""

    def test_no_limit_of_memory_ends_a_command_by_a_signal(self):
        def limit(mib):
            return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))
        if subprocess.run([BINARY, "version"], capture_output=True, preexec_fn=limit(1024)).returncode != 0:
            self.skipTest("a sanitizer reserves more address space than this test leaves")
        with tempfile.TemporaryDirectory(prefix="deltafold-cli-") as directory:
            for mib in (16, 24, 32, 40, 48, 64, 96, 128, 256):
                for arguments in (["compress", BASE, FINETUNE, f"{directory}/{mib}"], ["inspect", BASE],
                                  ["run", "--model", BASE, "--max-tokens", "2", "hi"],
                                  ["logits", "--model", BASE, "--ids", "1,2", "--greedy", 1]):
                    with self.subTest(mib=mib, command=arguments[0]):
                        done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                                              timeout=RUN_S, stdin=subprocess.DEVNULL, preexec_fn=limit(mib))
                        self.assertIn(done.returncode, (0, 1, 127), done.stderr)  # 127: the loader itself
                        if done.returncode == 1:
                            self.assertRegex(done.stderr, r"\Adeltafold.*\n\Z")


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

    def test_force_replaces_nothing_but_an_output(self):
        model, other = self.directory / "model", self.directory / "other"
        shutil.copytree(FINETUNE, model)
        other.mkdir()
        (other / "letter.txt").write_text("dear")
        before = {path: path.read_bytes() for place in (model, other) for path in place.iterdir()}
        for arguments in (["compress", BASE, model, model], ["compress", BASE, model, other],
                          ["compress", BASE, model, self.directory],
                          ["materialize", "--base", model, "--delta", self.delta, "--out", model],
                          ["materialize", "--base", BASE, "--delta", self.delta, "--out", self.delta],
                          ["materialize", "--base", BASE, "--delta", self.delta, "--out", other]):
            done = deltafold(*arguments, "--force")
            self.assertEqual((done.returncode, done.stdout), (1, ""), arguments)
        self.assertEqual({path: path.read_bytes() for place in (model, other) for path in place.iterdir()}, before)
        self.assertTrue((self.delta / "delta_config.json").exists())

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
