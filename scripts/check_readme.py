#!/usr/bin/env python3
"""Runs the commands that the documents show, so that they cannot go stale.

A shell block is run when the line above it is `<!-- check: KIND -->`:
  run    the block must succeed
  serve  the block starts a server: it is left running, the next blocks of the file talk to it, then it is stopped
Every block runs in the repository root, with the program on PATH as `deltafold` and HOME as it is.

Usage: check_readme.py --binary PATH [FILE ...]"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- check: (run|serve) -->\n```(?:sh|bash)\n(.*?)```", re.DOTALL)
READY_S = 60
BLOCK_S = 300


def wait_until_ready(server, port):
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            return f"the server ended with {server.returncode}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2):
                return None
        except OSError:
            time.sleep(0.1)
    return f"not ready on port {port} after {READY_S} s"


def stop(server):
    if server and server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def check(path, environment):
    """Runs the marked blocks of one document; returns (blocks run, messages)."""
    server, problems, n_blocks = None, [], 0
    try:
        for kind, script in BLOCK.findall(path.read_text()):
            n_blocks += 1
            command = ["bash", "-euo", "pipefail", "-c", script]
            if kind == "serve":
                stop(server)
                server = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True,
                                          stdout=subprocess.DEVNULL)
                port = re.search(r"--port[ =](\d+)", script)
                cause = wait_until_ready(server, int(port.group(1)) if port else 8000)
                if cause:
                    problems.append(f"{path.name}: {cause}:\n{script}")
                continue
            try:
                done = subprocess.run(command, cwd=ROOT, env=environment, text=True, timeout=BLOCK_S,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                if done.returncode:
                    problems.append(f"{path.name}: exit {done.returncode}:\n{script}{done.stdout[-4000:]}")
            except subprocess.TimeoutExpired:
                problems.append(f"{path.name}: still running after {BLOCK_S} s:\n{script}")
    finally:
        stop(server)
    return n_blocks, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, required=True, help="the program that the documents call deltafold")
    parser.add_argument("files", type=Path, nargs="*", help="default: README.md and docs/*.md")
    options = parser.parse_args()
    environment = dict(os.environ, PATH=f"{options.binary.resolve().parent}:{os.environ['PATH']}")
    problems, n_blocks = [], 0
    for path in options.files or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        n, found = check(path, environment)
        n_blocks += n
        problems += found
    for problem in problems:
        print(f"check_readme: {problem}", file=sys.stderr)
    print(f"check_readme: {n_blocks} blocks, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
