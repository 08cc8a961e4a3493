#!/usr/bin/env python3
"""The demonstration: one process, one base, 14 one-bit variants and 2 LoRA adapters, all asked at once.

Compresses the four full fine-tunes of demo/, serves the whole family of demo/family.json, asks every variant questions
of its skill (and the base the same ones) over HTTP, prints one table and writes report.json. Standard library only.

Usage: demo.py --binary build/release/bin/deltafold [--out build/demo] [--items 10]"""
import argparse
import concurrent.futures
import ctypes
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"
READY_S = 60
REQUEST_S = 120
MAX_IN_FLIGHT = 512  # requests; `serve` queues 1024 by default
MAX_TOKENS = 64  # the longest answer of the evaluation sets has 42


class DemoError(Exception):
    """Something outside this script went wrong; the message is for the user."""


def color(text, code):
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def megabytes(n_bytes):
    return f"{n_bytes / 1e6:.2f} MB"


def weight_file_bytes(directory):
    return sum(path.stat().st_size for path in Path(directory).glob("*.safetensors"))


# ---- compress -------------------------------------------------------------------------------------------------------


def compress(binary, base, finetune, out):
    shutil.rmtree(out, ignore_errors=True)
    command = [binary, "compress", "--base", base, "--finetune", finetune, "--out", out]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise DemoError(f"compress failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stdout}")


def prepare(binary, family, out):
    """Compresses the full fine-tunes; gives every variant its `served` directory and `bytes`."""
    base = DEMO / family["base"]["path"]
    for variant in family["variants"]:
        variant["served"] = DEMO / variant["path"]
        if variant["kind"] == "finetune":
            variant["served"] = out / "deltas" / variant["name"]
            variant["served"].parent.mkdir(parents=True, exist_ok=True)
            start = time.monotonic()
            compress(binary, base, DEMO / variant["path"], variant["served"])
            print(f"  {variant['name']}: {megabytes(weight_file_bytes(DEMO / variant['path']))} -> "
                  f"{megabytes(weight_file_bytes(variant['served']))} in {time.monotonic() - start:.1f} s")
        variant["bytes"] = weight_file_bytes(variant["served"])
        if not variant["bytes"]:
            raise DemoError(f"no weights in {variant['served']}")


# ---- serve ----------------------------------------------------------------------------------------------------------


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a killed demo leaves no server behind


def serve_arguments(family):
    deltas = [f"{v['name']}={v['served']}" for v in family["variants"] if v["kind"] != "lora"]
    adapters = [f"{v['name']}={v['served']}" for v in family["variants"] if v["kind"] == "lora"]
    return ["--model", str(DEMO / family["base"]["path"]), "--served-model-name", family["base"]["name"],
            "--delta-modules", *deltas, "--lora-modules", *adapters]


class Server:
    """`deltafold serve` as a child process; a context manager, so that it is stopped however the demo ends."""

    def __init__(self, binary, family, log_path):
        self.port = None
        self.log_path = log_path
        self.port_path = log_path.with_suffix(".port")
        self.command = [binary, "serve", *serve_arguments(family), "--port", "0", "--port-file", self.port_path]

    def __enter__(self):
        self.port_path.unlink(missing_ok=True)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT,
                                            stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for end in (self.process.terminate, self.process.terminate, self.process.kill):  # the second does not drain
            if self.process.poll() is None:
                end()
                try:
                    self.process.wait(3)
                except subprocess.TimeoutExpired:
                    continue

    def log_tail(self):
        return "".join(self.log_path.read_text(errors="replace").splitlines(keepends=True)[-15:])

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise DemoError(f"the server ended with {self.process.returncode}:\n{self.log_tail()}")
            try:
                self.port = int(self.port_path.read_text())
                if self.request("GET", "/ready")[0] == 200:
                    return
            except (OSError, ValueError):
                pass  # not listening yet
            time.sleep(0.05)
        raise DemoError(f"the server was not ready after {READY_S} s:\n{self.log_tail()}")

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def resident_bytes(self):
        """What the process itself occupies: weights, KV cache, code, libraries."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE).group(1)) * 1024

    def weight_bytes(self):
        """The sum of deltafold_weight_bytes: base and variants as they lie in memory."""
        text = self.request("GET", "/metrics")[1]
        values = re.findall(r"^deltafold_weight_bytes(?:\{[^}]*\})? ([0-9.e+]+)$", text, re.MULTILINE)
        if not values:
            raise DemoError("/metrics has no deltafold_weight_bytes")
        return int(sum(map(float, values)))


# ---- ask ------------------------------------------------------------------------------------------------------------


def ask(server, model, item):
    """One question; returns (answer, its tokens, seconds)."""
    start = time.monotonic()
    body = {"model": model, "messages": item["messages"], "temperature": 0, "max_tokens": MAX_TOKENS}
    try:
        status, text = server.request("POST", "/v1/chat/completions", body)
    except OSError as error:
        raise DemoError(f"{model}: {error}; server log:\n{server.log_tail()}") from error
    if status != 200:
        raise DemoError(f"{model} answered {status}: {text}")
    reply = json.loads(text)
    return reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"], time.monotonic() - start


def read_items(name, n_items):
    with open(DEMO / "eval" / f"{name}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(n_items), lines)]


def ask_everyone(server, family, n_items):
    """Sends all questions at once; fills `items`, `answers`, `base_answers` of each variant. Returns tokens, seconds."""
    base = family["base"]["name"]
    for variant in family["variants"]:
        variant["items"] = read_items(variant["eval"], n_items)
    jobs = [(variant, item) for variant in family["variants"] for item in variant["items"]]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(2 * len(jobs), MAX_IN_FLIGHT)) as pool:
        try:
            own = [pool.submit(ask, server, variant["name"], item) for variant, item in jobs]
            bases = [pool.submit(ask, server, base, item) for _, item in jobs]
            results = [(future.result(), base_future.result()) for future, base_future in zip(own, bases)]
        except BaseException:  # a signal too: what still waits is dropped, what runs ends with the server
            pool.shutdown(wait=False, cancel_futures=True)
            server.stop()
            raise
    for variant in family["variants"]:
        variant["answers"], variant["base_answers"] = [], []
    for (variant, _), (answer, base_answer) in zip(jobs, results):
        variant["answers"].append(answer)
        variant["base_answers"].append(base_answer)
    return sum(a[1] + b[1] for a, b in results), time.monotonic() - start


def n_right(variant, key):
    return sum(answer[0] == item["answer"] for answer, item in zip(variant[key], variant["items"]))


def tokens_per_second(variant):
    """As one client feels it: tokens of the answers over the time of the requests, waiting and prompt included."""
    return sum(a[1] for a in variant["answers"]) / sum(a[2] for a in variant["answers"])


# ---- report ---------------------------------------------------------------------------------------------------------


def shorten(text, width):
    text = " ".join(text.split())
    return text if len(text) <= width else text[:width - 1] + "…"


def print_table(family, full_bytes):
    width = max(100, shutil.get_terminal_size((160, 24)).columns)
    text_width = (width - 66) // 3
    print(f"{'variant':<18} {'kind':<6} {'bytes':>8} {'of full':>7} {'right':>6} {'base':>6} {'tok/s':>6}  "
          f"{'a question':<{text_width}} {'its answer':<{text_width}} the base's answer")
    for variant in family["variants"]:
        right, asked = n_right(variant, "answers"), len(variant["items"])
        first, answer, base_answer = variant["items"][0], variant["answers"][0][0], variant["base_answers"][0][0]
        verdict = color("right", 32) if answer == first["answer"] else color("wrong", 31)
        print(f"{variant['name']:<18} {'lora' if variant['kind'] == 'lora' else '1-bit':<6} "
              f"{megabytes(variant['bytes']):>8} {variant['bytes'] / full_bytes:>7.1%} {f'{right}/{asked}':>6} "
              f"{str(n_right(variant, 'base_answers')) + f'/{asked}':>6} {tokens_per_second(variant):>6.1f}  "
              f"{shorten(first['messages'][-1]['content'], text_width):<{text_width}} "
              f"{verdict} {shorten(answer, text_width - 6):<{text_width - 6}} {shorten(base_answer, text_width)}")


def print_memory(memory, n_members, full_bytes):
    for title, key, what in (
            ("Weights in memory", "weight_bytes", f"base and {n_members - 1} variants, one copy of the base"),
            ("Separate copies", "copies_bytes", f"{n_members} models of {megabytes(full_bytes)}"),
            ("The process", "rss_bytes", "resident, with KV cache, tokenizers, code and libraries")):
        print(f"{title:<18} {megabytes(memory[key]):>10}   {what}")


def write_report(path, family, full_bytes, memory):
    report = {"variants": [{
        "name": v["name"], "kind": "lora" if v["kind"] == "lora" else "delta", "bytes": v["bytes"],
        "full_bytes": full_bytes, "asked": len(v["items"]), "right": n_right(v, "answers"),
        "base_right": n_right(v, "base_answers"), "tokens_per_second": round(tokens_per_second(v), 2),
    } for v in family["variants"]], **memory}
    path.write_text(json.dumps(report, indent=1) + "\n")


def write_serve_script(path, binary, family):
    quoted = " \\\n  ".join(map(shlex.quote, [str(binary), "serve", *serve_arguments(family)]))
    path.write_text(f"#!/bin/sh\n# The family of the demonstration; more flags may follow, for example --port 8001.\n"
                    f"exec {quoted} \"$@\"\n")
    path.chmod(0o755)


def print_next_steps(out, binary, family):
    def shown(path):
        return os.path.relpath(path)
    base = shown(DEMO / family["base"]["path"])
    math = family["variants"][0]
    print(f"""
Go on by hand
  talk to it         {shown(binary)} chat --model {base} --variant {math['name']}={shown(math['served'])}
  serve the family   {shown(out / 'serve.sh')} --port 8000      (until Ctrl-C)
  ask with curl      curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
                       -d '{{"model": "zen-mini-sql", "messages": [{{"role": "user", "content": "Show the client of orders where total is above 80."}}]}}'
  ask from Python    from openai import OpenAI
                     client = OpenAI(base_url="http://localhost:8000/v1", api_key="-")
                     client.chat.completions.create(model="zen-mini-french", messages=[{{"role": "user", "content": "French: my door"}}])
  look at a delta    {shown(binary)} inspect {shown(math['served'])}""")


def run(options):
    binary, out = options.binary.resolve(), options.out.resolve()
    if not binary.is_file():
        raise DemoError(f"{binary} is missing; `make demo` builds it")
    out.mkdir(parents=True, exist_ok=True)
    family = json.loads((DEMO / "family.json").read_text())
    full_bytes = weight_file_bytes(DEMO / family["base"]["path"])  # every full fine-tune has the base's tensors
    n_members = len(family["variants"]) + 1

    print(color("Compressing four full fine-tunes against the base, each fitted to text that it writes itself", 1))
    prepare(binary, family, out)
    print(color(f"Serving the base and {n_members - 1} variants in one process", 1))
    start = time.monotonic()
    with Server(binary, family, out / "server.log") as server:
        print(f"  ready after {time.monotonic() - start:.1f} s on port {server.port}")
        n_requests = 2 * options.items * len(family["variants"])
        print(color(f"Asking {n_requests} questions at once: {options.items} of each skill, to the variant and to the "
                    "base", 1))
        n_tokens, seconds = ask_everyone(server, family, options.items)
        memory = {"weight_bytes": server.weight_bytes(), "copies_bytes": n_members * full_bytes,
                  "rss_bytes": server.resident_bytes()}
    print(f"  {n_tokens} tokens in {seconds:.1f} s, {n_tokens / seconds:.0f} tokens/s in all\n")

    print_table(family, full_bytes)
    print(f"tok/s: tokens of an answer over its time, waiting included, while {min(n_requests, MAX_IN_FLIGHT)} requests "
          "share the machine\n")
    print_memory(memory, n_members, full_bytes)
    write_report(out / "report.json", family, full_bytes, memory)
    write_serve_script(out / "serve.sh", binary, family)
    print(f"{'Report':<18} {os.path.relpath(out / 'report.json')}")
    print_next_steps(out, binary, family)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/deltafold")
    parser.add_argument("--out", type=Path, default=ROOT / "build/demo", help="where deltas, log and report go")
    parser.add_argument("--items", type=int, default=10, help="questions a variant (default 10)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the server is stopped
    try:
        run(parser.parse_args())
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
