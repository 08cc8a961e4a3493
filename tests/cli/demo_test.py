#!/usr/bin/env python3
"""The demonstration does what it says, and leaves nothing running. Usage: demo_test.py DELTAFOLD [unittest arguments]"""
import json
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = None
RUN_S = 240


def demo(out, *arguments):
    return subprocess.Popen([sys.executable, ROOT / "scripts" / "demo.py", "--binary", BINARY, "--out", out, *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def servers_of(out):
    """Processes that serve deltas made in `out`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(out).encode() in path.read_bytes() and b"\0serve\0" in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass  # it has just ended
    return found


class Demo(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="deltafold-demo-")
        self.addCleanup(self.directory.cleanup)
        self.out = Path(self.directory.name).resolve()

    def test_every_variant_answers_from_one_base(self):
        run = demo(self.out, "--items", "5")
        printed, errors = run.communicate(timeout=RUN_S)
        self.assertEqual((run.returncode, errors), (0, ""))
        self.assertNotIn("\033", printed)  # colours are for terminals
        report = json.loads((self.out / "report.json").read_text())
        variants = report["variants"]
        self.assertEqual([v["kind"] for v in variants], ["delta"] * 14 + ["lora"] * 2)
        for variant in variants:
            self.assertIn(variant["name"], printed)
            self.assertEqual(variant["asked"], 5)
            self.assertGreater(variant["tokens_per_second"], 0)
            self.assertLess(variant["bytes"], 0.1 * variant["full_bytes"])
        # Over 200 items each the deltas have 98.0 % right and their base 4.2 % (README.md).
        self.assertGreaterEqual(sum(v["right"] for v in variants), 0.9 * 5 * 16)
        self.assertLessEqual(sum(v["base_right"] for v in variants), 0.2 * 5 * 16)
        sizes = sum(v["bytes"] for v in variants) + variants[0]["full_bytes"]
        self.assertLess(report["weight_bytes"], 1.05 * sizes)  # one base and the differences, nothing twice
        self.assertLess(report["weight_bytes"], 0.15 * report["copies_bytes"])
        self.assertEqual(servers_of(self.out), [])

    def test_a_terminated_run_stops_its_server(self):
        run = demo(self.out, "--items", "200")
        deadline = time.monotonic() + RUN_S
        while not servers_of(self.out) and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertNotEqual(servers_of(self.out), [])
        while "POST" not in (self.out / "server.log").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)  # thousands of questions are under way
        run.communicate(timeout=RUN_S)
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(servers_of(self.out), [])

    def test_a_missing_program_is_one_clear_line(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "demo.py", "--binary", self.out / "absent"],
                              capture_output=True, text=True, timeout=RUN_S)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\Ademo: .*absent is missing; `make demo` builds it\n\Z")


if __name__ == "__main__":
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
