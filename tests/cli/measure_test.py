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
        plan = answer("plan", DEMO / "zen-mini-base", "--code", "rank1", "--embeddings", "planes2")
        inspected = json.loads(deltafold("inspect", DEMO / "deltas" / "zen-mini-german", "--json").stdout)
        self.assertEqual(plan["codes"][0]["figures"]["delta_bytes"]["value"], inspected["bytes"])
        plain = answer("plan", DEMO / "zen-mini-base", "--code", "rank1", "--embeddings", "planes2", "--calibrate", "none")
        self.assertGreater(plain["codes"][0]["figures"]["delta_bytes"]["value"], inspected["bytes"])

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


class Eval(unittest.TestCase):
    """Of the bundled family, a few questions each."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_codes_stand_beside_base_and_full_fine_tune(self):
        math, tune = self.folder / "delta", DEMO / "finetunes" / "zen-mini-math"
        self.assertEqual(deltafold("compress", DEMO / "zen-mini-base", tune, math, "--code", "rank1", "--calibrate", "none").returncode, 0)
        plot, replies, report = (self.folder / name for name in ("plot.svg", "replies.jsonl", "report.json"))
        arguments = ["--base", DEMO / "zen-mini-base", "--variant", f"math={tune}", "--variant", f"math:mine={math}",
                     "--variant", f"math={math}", "--task", DEMO / "eval" / "math.jsonl", "--items", 6, "--text",
                     DEMO / "eval" / "text.txt", "--text-tokens", 256, "--window", 64]
        found = answer("eval", *arguments, "--plot", plot, "--replies", replies, "--report", report)
        self.assertEqual([row["code"] for row in found["results"]], ["base", "full", "mine", "rank1"])
        base, full, mine, rank1 = found["results"]
        self.assertEqual((base["correct"], full["correct"], full["kl_full"]), (0, 6, 0))
        self.assertGreater(base["kl_full"], 10 * mine["kl_full"])
        self.assertGreater(base["text_kl_full"], mine["text_kl_full"])
        self.assertEqual({**rank1, "code": "mine"}, mine)
        self.assertEqual(mine["task"], "math")
        self.assertEqual(mine["bytes"], 1525248)
        self.assertEqual(found["summary"][-1]["kl_ratio"]["value"], 1)
        self.assertIn("<svg", plot.read_text())
        lines = [json.loads(line) for line in replies.read_text().splitlines()]
        self.assertEqual(len(lines), 4 * 6)
        self.assertEqual([line["reply"] for line in lines if line["code"] == "full"],
                         [json.loads(line)["answer"] for line in (DEMO / "eval" / "math.jsonl").read_text().splitlines()[:6]])
        written = json.loads(report.read_text())
        self.assertEqual(written["results"], found["results"])
        done = deltafold("eval", *arguments, "--card")
        self.assertEqual(done.returncode, 0, done.stderr)
        table, card = done.stdout, (math / "README.md").read_text()
        self.assertIn("base_model", card)
        self.assertIn("6 questions of `math`", card)
        self.assertIn("perplexity of `text.txt`", card)
        self.assertEqual(deltafold("eval", *arguments, "--card").returncode, 0)
        self.assertEqual((math / "README.md").read_text(), card)
        self.assertEqual(deltafold("inspect", math).returncode, 0)
        for words in ("difference [95 %]", "full perplexity", "KL / mine [95 %]", "rank1"):
            self.assertIn(words, table)

    def test_a_family_file_says_who_is_asked_what(self):
        found = answer("eval", "--family", DEMO / "family.json", "--items", 1, "--no-base", "--teacher-forced")
        family = json.loads((DEMO / "family.json").read_text())
        self.assertEqual([(row["variant"], row["task"]) for row in found["results"]],
                         [(variant["name"], variant["eval"]) for variant in family["variants"]])
        self.assertEqual(sum(row["code"] == "full" for row in found["results"]), 4)
        self.assertTrue(all(row["n"] == 1 for row in found["results"]))

    def test_what_cannot_be_measured_is_named(self):
        base, delta = DEMO / "zen-mini-base", DEMO / "deltas" / "zen-mini-german"
        task = DEMO / "eval" / "german.jsonl"
        empty = self.folder / "empty.txt"
        empty.write_text("")
        for code, arguments, words in (
                (2, [], "--base"),
                (2, ["--base", base, "--variant", f"a={delta}", "--task", task, "--text", empty], "the file is empty"),
                (1, ["--base", base, "--variant", f"a:x={delta}", "--variant", f"a:x={delta}", "--task", task], "are called \"x\""),
                (2, ["--base", base], "--text FILE or --task FILE"),
                (2, ["--base", base, "--variant", delta], "NAME=PATH"),
                (2, ["--base", base, "--variant", f"a={delta}", "--task", f"b={task}"], "there is no variant b"),
                (1, ["--base", base, "--variant", f"a={self.folder}/none", "--task", task], "none"),
                (1, ["--base", base, "--variant", f"a={delta}", "--task", self.folder / "none.jsonl"], "none.jsonl"),
                (1, ["--base", base, "--variant", f"a={base}", "--variant", f"a={base}", "--task", task], "two full models"),
                (1, ["--family", self.folder / "none.json"], "none.json"),
                (1, ["--base", base, "--text", task, "--plot", "/no/such/folder/plot.svg"], "/no/such/folder")):
            done = deltafold("eval", *arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), arguments)
            self.assertIn(words, done.stderr)
        for content in ("[]", '{"variants": [7]}', '{"variants": [{"name": "a", "codes": []}]}', '{"variants": [{}]}'):
            path = self.folder / "family.json"
            path.write_text(content)
            done = deltafold("eval", "--base", base, "--family", path)
            self.assertEqual((done.returncode, done.stdout), (1, ""), content)
            self.assertIn("family.json", done.stderr)


if __name__ == "__main__":
    BINARY = Path(sys.argv.pop(1)).resolve()
    unittest.main()
