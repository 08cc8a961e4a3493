#!/usr/bin/env python3
"""The callback without transformers: a module of its name stands in for it, a script for the program. With an argument,
the program itself on checkpoints of the bundled family. Usage: soup_callback_test.py [DELTAFOLD]"""
import json
import os
import shutil
import sys
import tempfile
import types
import unittest
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
BINARY = None

transformers = types.ModuleType("transformers")
transformers.TrainerCallback = type("TrainerCallback", (), {})
sys.modules["transformers"] = transformers
sys.path.insert(0, str(ROOT / "python"))

from deltafold_soup import SoupCallback, SoupError  # noqa: E402

FIRST, OTHER = SimpleNamespace(is_world_process_zero=True), SimpleNamespace(is_world_process_zero=False)


class Callback(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="deltafold-callback-")))
        self.args = SimpleNamespace(output_dir=str(self.folder / "run"))
        self.control = object()

    def program(self, script):
        path = self.folder / "program"
        path.write_text("#!/bin/sh\n" + script)
        os.chmod(path, 0o755)
        return path

    def callback(self, script, **options):
        return SoupCallback(base="org/base", out=self.folder / "soup", binary=self.program(script), **options)

    def save(self, callback, state=FIRST):
        self.assertIs(callback.on_save(self.args, state, self.control, model=None), self.control)

    def test_gives_the_program_what_it_was_given(self):
        report = {"score": "perplexity", "best": {"score": 2.5, "directory": "d"}, "waiting": []}
        (self.folder / "report").write_text(json.dumps(report))
        callback = self.callback(f'printf "%s\\n" "$@" > {self.folder}/said; cat {self.folder}/report\n',
                                 arguments=["--eval-text", Path("a text.txt"), "--rank", 8], every=50)
        with self.assertLogs("deltafold_soup", "INFO") as logs:
            self.save(callback)
        self.assertIn("perplexity 2.5", logs.output[0])
        self.assertEqual(callback.report, report)
        self.assertEqual((self.folder / "said").read_text().splitlines(),
                         ["soup", "--watch", self.args.output_dir, "--out", str(self.folder / "soup"), "--base", "org/base",
                          "--every", "50", "--eval-text", "a text.txt", "--rank", "8", "--once", "--settle", "0", "--json"])

    def test_a_base_is_optional(self):
        self.assertNotIn("--base", SoupCallback(base=None, out="o").command("run"))

    def test_other_processes_do_nothing(self):
        callback = self.callback("exit 1", strict=True)
        self.save(callback, OTHER)
        self.assertIsNone(callback.report)

    def test_a_failure_is_logged_and_the_training_goes_on(self):
        for script, words in (("echo no such base >&2; exit 1\n", "status 1: no such base"), ("echo nothing\n", "no report"),
                              ("echo '{}'\n", "no report"), ("echo '[]'\n", "no report"), ("exec sleep 20\n", "longer than 0.2")):
            with self.assertLogs("deltafold_soup", "WARNING") as logs:
                self.save(self.callback(script, timeout_s=0.2 if "sleep" in script else 20))
            self.assertIn(words, logs.output[0])
        absent = SoupCallback(base=None, out="o", binary=self.folder / "absent")
        with self.assertLogs("deltafold_soup", "WARNING") as logs:
            self.save(absent)
        self.assertIn("cannot run", logs.output[0])

    def test_a_strict_one_raises(self):
        with self.assertRaisesRegex(SoupError, "no such base"):
            self.save(self.callback("echo no such base >&2; exit 1\n", strict=True))


class Program(unittest.TestCase):
    """The callback with the program itself, as a trainer of two checkpoints would call it."""

    def test_two_saves_give_a_soup(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="deltafold-callback-")))
        run, demo = folder / "run", ROOT / "demo"
        callback = SoupCallback(base=demo / "zen-mini-base", out=folder / "soup", binary=BINARY, strict=True,
                                arguments=["--eval-questions", demo / "eval" / "sql.jsonl", "--items", 10, "--metric",
                                           "cross-entropy", "--method", "linear"])
        args = SimpleNamespace(output_dir=run)
        for step, model in ((10, "zen-mini-math"), (20, "zen-mini-sql")):
            shutil.copytree(demo / "finetunes" / model, run / f"checkpoint-{step}")
            (run / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
            callback.on_save(args, FIRST, object())
        self.assertEqual([step["step"] for step in callback.report["steps"]], [10, 20])
        self.assertEqual(callback.report["steps"][1]["kept"], "newest")
        self.assertTrue((folder / "soup" / "best" / "model.safetensors").is_file())


if __name__ == "__main__":
    BINARY = sys.argv[1] if len(sys.argv) > 1 else None
    if BINARY is None:
        del Program
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
