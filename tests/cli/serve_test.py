#!/usr/bin/env python3
"""What `deltafold serve` says of flags, variables and modules that are wrong: one line that names the cause, before anything is loaded.
Usage: serve_test.py DELTAFOLD [unittest arguments]"""
import os
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "demo" / "zen-mini-base"
BINARY = None
RUN_S = 120


def serve(*flags, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DELTAFOLD_")}
    return subprocess.run([BINARY, "serve", *map(str, flags)], capture_output=True, text=True, timeout=RUN_S,
                          stdin=subprocess.DEVNULL, env={**environment, **variables})


class Serve(unittest.TestCase):
    def expect_one_line(self, done, *words):
        lines = done.stderr.strip().split("\n")
        causes = [line for line in lines if not line.startswith("  ")]  # hints are indented
        self.assertEqual((done.returncode, done.stdout, len(causes)), (2, "", 1), done)
        for word in words:
            self.assertIn(word, causes[0])

    def test_modules_that_are_no_modules_are_named(self):
        for module, words in (
                ("nopath", ("nopath", "NAME=PATH")),
                ("=path", ("NAME=PATH",)),
                ("name=", ("NAME=PATH",)),
                ("{", ("JSON",)),
                ('{"name": "a"', ("JSON",)),
                ('{"name": "a", "name": "b", "path": "x"}', ("name",)),
                ('{"name": "a"}', ('"path"',)),
                ('{"path": "x"}', ('"name"',)),
                ('{"name": 1, "path": "x"}', ('"name"',)),
                ('{"name": "a", "path": ["x"]}', ('"path"',)),
                ('{"name": "a", "path": "x", "base_model_name": 7}', ('"base_model_name"',)),
                ('{"name": "a", "path": "x", "base_model": "b"}', ('unknown key "base_model"', '"base_model_name"')),
                ('{"name": "a", "path": "x"} trailing', ("JSON",)),
                ("{" * 300, ("JSON",))):
            for flag, variable in (("--lora-modules", "DELTAFOLD_LORA_MODULES"),
                                   ("--delta-modules", "DELTAFOLD_DELTA_MODULES")):
                with self.subTest(module, flag=flag):
                    # The model is not there: what is wrong with the modules is said first.
                    self.expect_one_line(serve("--model", "/nowhere", flag, module), flag, *words)
                with self.subTest(module, variable=variable):
                    self.expect_one_line(serve("--model", "/nowhere", **{variable: module}), variable, *words)

    def test_a_module_of_the_command_line_hides_the_variable(self):
        done = serve("--model", "/nowhere", "--lora-modules", "a=/nowhere", DELTAFOLD_LORA_MODULES="nopath")
        self.assertNotIn("NAME=PATH", done.stderr)
        self.assertIn("/nowhere", done.stderr)

    def test_values_of_variables_that_are_wrong_are_named(self):
        for variable, value, words in (
                ("DELTAFOLD_PORT", "http", ("http",)),
                ("DELTAFOLD_PORT", "65536", ("65536",)),
                ("DELTAFOLD_MAX_NUM_SEQS", "-1", ("-1",)),
                ("DELTAFOLD_MAX_MODEL_LEN", "1.5", ("1.5",)),
                ("DELTAFOLD_VARIANT_BYTES", "2 potatoes", ("2 potatoes",)),
                ("DELTAFOLD_VARIANT_LOAD_THREADS", "0", ("0",)),
                ("DELTAFOLD_VARIANT_IDLE_TIMEOUT", "soon", ("soon",)),
                ("DELTAFOLD_MAX_LOGPROBS", "5000", ("5000",)),
                ("DELTAFOLD_KV_CACHE_BYTES", "much", ("much",)),
                ("DELTAFOLD_LOG_LEVEL", "loud", ("loud",)),
                ("DELTAFOLD_ADAPTER_POOL_POLICY", "best", ("best",)),
                ("DELTAFOLD_ADAPTER_POOL_MAX_ERROR", "small", ("small",)),
                ("DELTAFOLD_ENABLE_PREFIX_CACHING", "perhaps", ("perhaps",)),
                ("DELTAFOLD_KV_CACHE_DTYPE", "int3", ("int3",)),
                ("DELTAFOLD_SERVED_MODEL_NAME", "a\nb", ("served-model-name",)),
                ("DELTAFOLD_PIN", "nobody", ("nobody",)),
                ("DELTAFOLD_API_KEY", "", ("DELTAFOLD_API_KEY",)),
                ("DELTAFOLD_ADMIN_API_KEY", "a b", ("API key",))):
            with self.subTest(variable, value=value):
                port = () if variable == "DELTAFOLD_PORT" else ("--port", "0")
                done = serve("--model", BASE, *port, **{variable: value})
                self.expect_one_line(done, *words)

    def test_what_a_file_or_flag_says_is_no_command_to_a_terminal(self):
        for hostile in ("a\x1b[31m\x07", "a\u202eb", "a\nb", "a\u009b1m", "a\u2066b"):
            with self.subTest(repr(hostile)):
                done = serve("--model", "/nowhere/" + hostile)
                self.assertNotIn(hostile, done.stderr)
                self.assertIn("/nowhere/a\\", done.stderr)
                done = serve("--model", BASE, "--lora-modules", hostile)
                self.assertNotIn(hostile, done.stderr)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
