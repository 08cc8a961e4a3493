#!/usr/bin/env python3
"""What the measuring commands say: plan and eval.
Usage: measure_test.py DELTAFOLD [unittest arguments]"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo"
BINARY = None
RUN_S = 300


def deltafold(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=RUN_S,
                          stdin=subprocess.DEVNULL)


def answer(*arguments):
    """The JSON that a command prints."""
    done = deltafold(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Plan(unittest.TestCase):
    def test_a_plan_is_the_same_from_shape_sizes_and_config(self):
        sizes = ["--d-model", 4096, "--layers", 32, "--heads", 32, "--d-ff", 11008, "--vocab", 32000]
        config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                  "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "torch_dtype": "bfloat16",
                  "hidden_act": "silu"}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "config.json")
            path.write_text(json.dumps(config))
            plans = [answer("plan", *model) for model in (["llama-2-7b"], sizes, [path], [folder])]
        for plan in plans:
            self.assertEqual(plan["model"]["figures"], plans[0]["model"]["figures"])
            self.assertEqual(plan["codes"], plans[0]["codes"])
        self.assertEqual(plans[0]["model"]["figures"]["parameters"]["value"], 6738415616)

    def test_tables_name_what_was_asked_for(self):
        done = deltafold("plan", "llama-2-70b", "--memory", "320GB", "--code", "rank1,lora:8", "--medium", "nfs=0.4")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("rank1", "lora:8", "fit in 320 GiB", "nfs 0.40 GB/s", "4-bit", "family_bytes"):
            self.assertIn(words, done.stdout)
        self.assertNotIn("planes2", done.stdout)

    def test_a_model_directory_is_planned_by_its_config(self):
        plan = answer("plan", DEMO / "zen-mini-base", "--code", "rank1")
        inspected = json.loads(deltafold("inspect", DEMO / "deltas" / "zen-mini-german", "--json").stdout)
        self.assertEqual(plan["codes"][0]["figures"]["delta_bytes"]["value"], inspected["bytes"])

    def test_what_makes_no_sense_is_wrong_usage(self):
        for arguments in ([], ["--d-model", "64"], ["qwen3-0.6b", "--code", "one-bit"], ["qwen3-0.6b", "--medium", "disk"],
                          ["qwen3-0.6b", "--medium", "disk=0"], ["qwen3-0.6b", "--variants", "0"],
                          ["qwen3-0.6b", "--d-model", "64"], ["qwen3-0.6b", "--embeddings", "none"]):
            done = deltafold("plan", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr, r"\Adeltafold plan: ")
        done = deltafold("plan", "no/such-model")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("llama-2-70b", done.stderr)


if __name__ == "__main__":
    BINARY = Path(sys.argv.pop(1)).resolve()
    unittest.main()
