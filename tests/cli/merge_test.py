#!/usr/bin/env python3
"""`deltafold merge` as a user meets it: recipes and direct forms, outputs, kills, refusals; what is served of a merge.
Usage: merge_test.py DELTAFOLD [unittest arguments]"""
import fcntl
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
DEMO = ROOT / "demo"
BASE = DEMO / "zen-mini-base"
MATH, SQL = (DEMO / "finetunes" / f"zen-mini-{name}" for name in ("math", "sql"))
DELTA = DEMO / "deltas" / "zen-mini-json"
LORA = DEMO / "adapters" / "format-title"
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


def tensors(path):
    """Name -> bytes."""
    data = path.read_bytes()
    n_header = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n_header])
    header.pop("__metadata__", None)
    return {name: data[8 + n_header:][slice(*tensor["data_offsets"])] for name, tensor in header.items()}


def bf16(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def f32(data):
    return list(struct.unpack(f"<{len(data) // 4}f", data))


class Merge(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "out"

    def recipe(self, text):
        path = self.folder / "recipe.yml"
        path.write_text(text)
        return path

    def left(self):
        return sorted(path.name for path in self.folder.iterdir() if path.name != "recipe.yml")

    def test_a_recipe_and_flags_say_the_same(self):
        recipe = self.recipe(f"merge_method: linear\nmodels:\n  - model: {MATH}\n    parameters: {{weight: 0.5}}\n"
                             f"  - model: {SQL}\n    parameters: {{weight: 0.25}}\nout_dtype: float32\n")
        report = answer("merge", recipe, self.out)
        flags = self.folder / "flags"
        answer("merge", "linear", "--model", f"{MATH}=0.5", "--model", f"{SQL}=0.25", "--dtype", "f32", "--out", flags)
        merged, other = (tensors(path / "model.safetensors") for path in (self.out, flags))
        self.assertEqual(merged, other)
        math, sql = (tensors(path / "model.safetensors") for path in (MATH, SQL))
        name = "model.layers.0.mlp.up_proj.weight"
        for got, a, b in zip(f32(merged[name])[:500], bf16(math[name]), bf16(sql[name])):
            self.assertAlmostEqual(got, (0.5 * a + 0.25 * b) / 0.75, delta=1e-7)
        self.assertEqual(report["merge"]["models"], ["zen-mini-math", "zen-mini-sql"])
        for tensor in report["merge"]["tensors"]:
            self.assertEqual(len(tensor["task_norms"]), 2)
            self.assertEqual(len(tensor["coefficients"]), 2)

    def test_what_is_written_is_a_model_with_its_text_and_card(self):
        done = deltafold("merge", "svd-average", "--rank", 8, "--base", BASE, "--model", MATH, "--model", SQL, "--out",
                         self.out)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("zen-mini-math", "merged", "kept of the spectra", "read and written"):
            self.assertIn(words, done.stdout)
        card = (self.out / "README.md").read_text()
        for words in ("base_model_relation: merge", "- \"zen-mini-base\"", "merge_method: svd_average", "rank: 8"):
            self.assertIn(words, card)
        self.assertNotIn(str(ROOT), card)
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            self.assertTrue((self.out / name).exists(), name)
        run = deltafold("run", "--model", self.out, "2+2", "--max-tokens", 4)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.left(), ["out"])

    def test_deltas_and_adapters_are_models_too(self):
        report = answer("merge", "task-arithmetic", "--base", BASE, "--model", f"{DELTA}=0.5", "--model", f"{LORA}=1",
                        "--model", f"{BASE}+{DEMO / 'adapters' / 'numbers-fr-rslora'}=0.5", "--out", self.out)
        self.assertEqual(report["merge"]["models"][2], "zen-mini-base+numbers-fr-rslora")
        self.assertTrue(all(norm > 0 for norm in report["merge"]["task_norms"]))

    def test_an_adapter_counts_as_what_materialize_makes_of_it(self):
        full = self.folder / "full"
        answer("materialize", "--base", BASE, "--variant", LORA, "--dtype", "f32", "--out", full)
        answer("merge", "linear", "--model", f"{BASE}+{LORA}", "--dtype", "f32", "--out", self.out)
        self.assertEqual(*(tensors(path / "model.safetensors") for path in (full, self.out)))

    def test_a_dry_run_writes_nothing_and_counts_what_is_written(self):
        arguments = ["monosoup", "--base", BASE, "--model", MATH, "--out", self.out]
        estimate = answer("merge", *arguments, "--dry-run")
        self.assertEqual(self.left(), [])
        report = answer("merge", *arguments)
        self.assertEqual(estimate["written_bytes"], report["merge"]["bytes"]["written"])
        self.assertGreater(estimate["seconds"], 0)
        text = deltafold("merge", *arguments, "--dry-run", "--force").stdout
        for words in ("merge_method: monosoup", "to read", "to write", "Nothing was written"):
            self.assertIn(words, text)

    def test_wrong_recipes_and_usage_are_told_apart(self):
        for text, words in (("merge_method: linear\nslices: []\n", "slices"), ("a: [", "line 1"),
                            (f"merge_method: linear\nmodels: [{{model: {MATH}}}]\n", "weight")):
            done = deltafold("merge", self.recipe(text), self.out)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(words, done.stderr)
            self.assertIn("recipe.yml", done.stderr)
        for arguments in (["linear", self.out], ["no-such-file.yml", self.out], ["slerp", "--model", MATH, "--out", self.out],
                          [self.recipe("merge_method: linear\n"), self.out, "--model", MATH],
                          ["linear", "--model", MATH, "--out", self.out, "--code", "rank1"],
                          ["linear", "--model", MATH, "--out", self.out, "--set", "weight"],
                          ["linear", "--model", MATH, "--out", self.out, "--set", "wieght=1"]):
            done = deltafold("merge", *arguments)
            self.assertIn(done.returncode, (1, 2), arguments)
            self.assertEqual(done.stdout, "")
            self.assertRegex(done.stderr, r"\Adeltafold merge: |\Adeltafold: ")
        self.assertFalse(self.out.exists())
        answer("merge", "linear", "--model", MATH, "--out", self.out)
        done = deltafold("merge", "linear", "--model", MATH, "--out", self.out)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exists", done.stderr)

    def test_models_of_one_last_name_are_told_apart_and_the_cards_recipe_can_be_run(self):
        for run, model in (("run1", MATH), ("run2", SQL)):
            (self.folder / run).mkdir()
            (self.folder / run / "ck").symlink_to(model)
        report = answer("merge", "linear", "--model", f"{self.folder / 'run1' / 'ck'}=0.5", "--model",
                        self.folder / "run2" / "ck", "--out", self.out)
        self.assertEqual(report["merge"]["models"], ["run1/ck", "run2/ck"])
        recipe = self.recipe((self.out / "README.md").read_text().split("```yaml\n")[1].split("```")[0])
        again = self.folder / "again"
        done = subprocess.run([BINARY, "merge", recipe, again], capture_output=True, text=True, timeout=RUN_S,
                              cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(*(tensors(path / "model.safetensors") for path in (self.out, again)))

    def test_a_model_that_says_no_weight_has_1(self):
        report = answer("merge", "task_arithmetic", "--base", BASE, "--model", MATH, "--model", f"{SQL}=-0.2", "--out",
                        self.out)
        self.assertEqual(report["merge"]["tensors"][0]["coefficients"], [1, -0.2])

    def test_an_unknown_method_is_named_with_the_known_ones(self):
        for arguments in (["breadcrumbs", "--model", MATH, "--model", SQL, "--out", self.out], ["foo"]):
            done = deltafold("merge", *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, f"{arguments[0]}.*linear, task_arithmetic.*opcm")
        done = deltafold("merge", "task-arithmetik", "--model", MATH, "--out", self.out)
        self.assertRegex(done.stderr, "unknown method.*did you mean task_arithmetic")

    def test_an_empty_out_is_refused_before_any_work(self):
        for arguments in (["merge", "linear", "--model", MATH], ["materialize", "--base", BASE, "--variant", LORA],
                          ["compress", "--base", BASE, "--model", MATH], ["export", "--base", BASE, "--variant", DELTA]):
            done = deltafold(*arguments, "--out", "")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, "out.*must not be empty")

    def test_flags_that_would_do_nothing_are_refused_by_name(self):
        done = deltafold("merge", "linear", "--base", BASE, "--model", MATH, "--out", self.out, "--as", "delta", "--lora-rank", 4)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--lora-rank is for --as lora", done.stderr)
        for flag in (["--calibrate", "none"], ["--seed", 9], ["--calibrate-memory", 5000]):
            done = deltafold("merge", "linear", "--model", MATH, "--out", self.out, *flag)
            self.assertEqual(done.returncode, 2)
            self.assertIn("are for --as delta and --as lora", done.stderr)
        for flag in (["--energy", ""], ["--t", ""], ["--as", "delta", "--code", ""], ["--as", "delta", "--bytes", ""]):
            done = deltafold("merge", "linear", "--base", BASE, "--model", MATH, "--out", self.out, *flag)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, f"{flag[-2]}.*must not be empty")
        done = deltafold("pool", "create", "", "--bytes", "1MB")
        self.assertEqual(done.returncode, 2)
        self.assertIn("must not be empty", done.stderr)
        done = deltafold("pool", "create", self.out, "--bytes", "1MB", "--policy", "kmerge", "--threshold", "0.3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--threshold is for --policy kmerge++", done.stderr)
        for flags, words in ((["--adapter-pool-rank", 8], "--adapter-pool-rank is for a pool: give --adapter-pool-bytes"),
                             (["--adapter-pool-dtype", "auto"], "--adapter-pool-dtype is for a pool"),
                             (["--adapter-pool-on-refusal", "reject"], "--adapter-pool-on-refusal is for a pool"),
                             (["--adapter-pool-dir", self.out], "--adapter-pool-dir is for a pool"),
                             (["--adapter-pool-policy", "bounded"], "--adapter-pool-policy is for a pool"),
                             (["--adapter-pool-max-error", 0.5], "--adapter-pool-max-error is for a pool"),
                             (["--adapter-pool-threshold", 0.5], "--adapter-pool-threshold is for a pool"),
                             (["--adapter-pool-bytes", "1MB", "--adapter-pool-on-refusal", "evict"],
                              "--adapter-pool-on-refusal is looked at by --adapter-pool-policy bounded alone, this is kmerge"),
                             (["--adapter-pool-bytes", "1MB", "--adapter-pool-rank", 0], "--adapter-pool-rank"),
                             (["--adapter-pool-bytes", "1MB", "--adapter-pool-dtype", "f8"], "--adapter-pool-dtype")):
            done = deltafold("serve", "--model", BASE, "--port", 0, *flags)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        for policy, flag, words in (("kmerge", ["--max-error", 0.5], "bounded"), ("kmerge++", ["--min-score", 0.5], "bounded"),
                                    ("kmerge", ["--on-refusal", "evict"], "bounded"), ("bounded", ["--alpha", 0.3], "--rule opcm")):
            done = deltafold("pool", "create", self.out, "--bytes", "1MB", "--policy", policy, *flag)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, f"{flag[0]}.*{words}")
        for values, words in (("[{value: 1}, {value: 2}]", "never taken"), ("[{filter: 3, value: 1}]", "in quotes")):
            done = deltafold("merge", self.recipe(f"merge_method: linear\nmodels:\n  - model: {MATH}\n    parameters:\n"
                                                  f"      weight: {values}\n"), self.out)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)

    def test_a_pool_in_use_is_waited_for_for_a_bounded_time(self):
        self.assertEqual(deltafold("pool", "create", self.out, "--bytes", "1MB").returncode, 0)
        with open(self.out / "pool.lock", "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            lock.truncate()
            lock.write("4711\n")
            lock.flush()
            for arguments in (("add", self.out, "title", LORA), ("evict", self.out, "title"), ("route", self.out, "title", "--used", 2)):
                done = deltafold("pool", *arguments, "--lock-timeout", 0)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, "out is in use by process 4711")
                self.assertNotIn("waiting", done.stderr)
            done = deltafold("pool", "add", self.out, "title", LORA, "--lock-timeout", 1)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "process 4711: waiting for 1 s at most")
            running = subprocess.Popen([BINARY, "pool", "add", self.out, "title", LORA], stderr=subprocess.PIPE, text=True)
            self.assertIn("waiting for 30 s", running.stderr.readline())
        self.assertEqual(running.wait(timeout=RUN_S), 0, running.stderr.read())
        running.stderr.close()
        self.assertEqual([row["members"][0]["id"] for row in json.loads(deltafold("pool", "list", self.out, "--json").stdout)], ["title"])

    def test_messages_name_what_is_to_be_typed(self):
        done = deltafold("merge", "svd_average", "--base", BASE, "--model", MATH, "--out", self.out)
        self.assertIn("--rank R or --energy E", done.stderr)
        done = deltafold("merge", "ties", "--base", BASE, "--model", MATH, "--density", "0.0000001", "--out", self.out)
        self.assertIn("is 1e-07", done.stderr)
        done = deltafold("merge", "slerp", "--t", "0.5", "--base", BASE, "--model", MATH, "--model", SQL, "--out", self.out)
        self.assertIn("the base counted, got 3", done.stderr)
        self.out.mkdir()
        done = deltafold("merge", "linear", "--model", MATH, "--out", self.out)
        self.assertIn("--force", done.stderr)

    def files(self):
        return {path.relative_to(self.out): path.read_bytes() for path in sorted(self.out.rglob("*")) if path.is_file()}

    def test_a_kill_at_any_moment_leaves_no_half_and_resumes_to_the_same_bytes(self):
        for form, arguments in (("full", ["opcm", "--base", BASE, "--model", MATH, "--model", SQL, "--out", self.out]),
                                ("delta", ["linear", "--base", BASE, "--model", MATH, "--model", SQL, "--out", self.out,
                                           "--as", "delta", "--calibrate", "none"]),
                                ("lora", ["linear", "--base", BASE, "--model", MATH, "--model", SQL, "--out", self.out,
                                          "--as", "lora", "--lora-rank", 8])):
            start = time.monotonic()
            answer("merge", *arguments)
            whole_s = time.monotonic() - start
            expected = self.files()
            draws = random.Random(7)
            for _ in range(6):
                subprocess.run(["rm", "-rf", str(self.out)], check=True)
                running = subprocess.Popen([BINARY, "merge", *map(str, arguments)], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                time.sleep(draws.uniform(0, whole_s))
                running.send_signal(signal.SIGKILL)
                running.wait()
                if self.out.exists():
                    self.assertEqual(self.files(), expected)
                    continue
                done = deltafold("merge", *arguments, "--resume")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.files(), expected, form)
                self.assertEqual(self.left(), ["out"])
            subprocess.run(["rm", "-rf", str(self.out)], check=True)

    def test_what_stands_beside_out_and_is_no_merges_is_never_touched(self):
        models = ["linear", "--base", BASE, "--model", MATH, "--model", SQL, "--out", self.out]
        own = self.folder / "out.merged" / "mine.txt"
        own.parent.mkdir()
        (own.parent / "config.json").write_text("{}")
        own.write_text("mine")
        for form in (["delta"], ["lora", "--lora-rank", 4]):
            for flag in ("--resume", "--force"):
                done = deltafold("merge", *models, "--as", *form, "--calibrate", "none", flag)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, "out.merged is in the way.*merge_scratch.json.*another --out")
                self.assertEqual(own.read_text(), "mine")
        shutil.rmtree(own.parent)
        beside = self.folder / "out.delta"
        shutil.copytree(DELTA, beside)
        before = tensors(beside / "delta_model.safetensors")
        answer("merge", *models, "--as", "lora", "--lora-rank", 4, "--resume")
        self.assertEqual(tensors(beside / "delta_model.safetensors"), before)
        self.assertEqual(self.left(), ["out", "out.delta"])

    def test_a_target_may_end_in_a_slash(self):
        for form in (["full"], ["delta", "--calibrate", "none"], ["lora", "--lora-rank", 4]):
            answer("merge", "linear", "--base", BASE, "--model", MATH, "--model", SQL, "--as", *form, "--out", f"{self.out}/")
            self.assertEqual(self.left(), ["out"])
            shutil.rmtree(self.out)

    def test_what_cannot_be_coded_keeps_the_merge_and_says_how_to_go_on(self):
        models = ["linear", "--base", BASE, "--model", MATH, "--model", SQL, "--out", self.out, "--as", "delta"]
        done = deltafold("merge", *models, "--calibrate", self.folder / "absent")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "--calibrate .*absent: no such file")
        self.assertEqual(self.left(), [])
        done = deltafold("merge", *models, "--calibrate", "none", "--bytes", "1")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "kept in .*out.merged.*--resume")
        done = deltafold("merge", *models, "--calibrate", "none")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "out.merged is what a stopped run merged.*--resume")
        answer("merge", *models, "--calibrate", "none", "--resume")
        self.assertEqual(self.left(), ["out"])

    def test_a_dry_run_says_what_the_run_would_refuse(self):
        self.out.mkdir()
        done = deltafold("merge", "linear", "--model", MATH, "--out", self.out, "--dry-run")
        self.assertEqual(done.returncode, 1)
        self.assertIn("exists already", done.stderr)
        done = deltafold("merge", "linear", "--base", BASE, "--model", MATH, "--out", self.folder / "b", "--dry-run", "--as", "lora")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("b.merged", done.stdout)

    def test_served_as_delta_and_as_lora_a_merge_answers_as_its_full_checkpoint(self):
        models = ["--base", BASE, "--model", f"{MATH}=0.6", "--model", f"{SQL}=0.4"]
        delta, lora = self.folder / "delta", self.folder / "lora"
        answer("merge", "task-arithmetic", *models, "--out", self.out)
        report = answer("merge", "task-arithmetic", *models, "--out", delta, "--as", "delta")
        self.assertIn("merge_method: task_arithmetic", (delta / "README.md").read_text())
        self.assertGreater(len(report["delta"]["tensors"]), 0)
        report = answer("merge", "task-arithmetic", *models, "--out", lora, "--as", "lora", "--lora-rank", 64)
        self.assertEqual(report["adapter"]["largest_rank"], 64)
        self.assertIn("# LoRA adapter of a merge", (lora / "README.md").read_text())
        self.assertEqual(self.left(), ["delta", "lora", "out"])
        measured = answer("eval", "--base", BASE, "--variant", f"merge={self.out}", "--variant", f"merge:delta={delta}",
                          "--variant", f"merge:lora={lora}", "--text", DEMO / "eval" / "text.txt", "--text-tokens", 2048,
                          "--window", 128)
        base, full, *variants = measured["results"]
        self.assertEqual((full["code"], [row["code"] for row in variants]), ("full", ["delta", "lora"]))
        kl = {row["code"]: row["text_kl_full"] for row in measured["results"]}
        print("KL to the merged checkpoint on text, nats a token:", kl, file=sys.stderr)
        for code in ("delta", "lora"):
            self.assertLess(kl[code], kl["base"] / 4, kl)


if __name__ == "__main__":
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
