#!/usr/bin/env python3
"""What loading costs those who run: time per token of two resident variants, alone and while others load all the time.

    synthetic_family DIR qwen3-0.6b 4      (built beside the tests)
    bench/load_cost.py build/release/bin/deltafold DIR [FLAG OF serve...]

The load client is `bench serve`. Rounds of the two phases take turns, so that what slows the machine slows both."""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

TOKENIZER = Path(__file__).resolve().parents[1] / "demo" / "zen-mini-base" / "tokenizer.json"
ASKED, LOADED = ("delta-0", "delta-3"), ("delta-1", "delta-2")


def write_tokenizer(base):
    """The demonstration's, filled up to the shape's vocabulary: every token has a text, so every token is sent."""
    n_vocab = json.loads((base / "config.json").read_text())["vocab_size"]
    tokenizer = json.loads(TOKENIZER.read_text())
    vocab, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    taken = set(vocab.values())
    vocab.update({f"t{i}x": i for i in range(n_vocab - len(added)) if i not in taken})
    for i, token in enumerate(added):
        token["id"] = n_vocab - len(added) + i
    (base / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))


class Server:
    def __init__(self, binary, family, flags):
        self.binary, self.directory = binary, tempfile.TemporaryDirectory()
        port_file = Path(self.directory.name) / "port"
        command = [binary, "serve", "--model", family / "base", "--port", "0", "--port-file", port_file, "--variant-bytes",
                   "1GB", "--kv-cache-bytes", "256MB", "--max-model-len", "512", "--log-level", "error",
                   "--delta-modules", *[f"{name}={family / name}" for name in (*ASKED, *LOADED)], *flags]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
        while not port_file.exists():
            if self.process.poll() is not None:
                sys.exit(f"serve ended early with {self.process.returncode}")
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port_file.read_text().strip()}"

    def call(self, path, data=None):
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data=data), timeout=60) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def row(self, name):
        return next(row for row in json.loads(self.call("/v1/variants"))["data"] if row["id"] == name)

    def n_loads(self):
        lines = self.call("/metrics").splitlines()
        return int(next(line for line in lines if line.startswith("deltafold_variant_load_seconds_count")).split()[-1])

    def load_again_and_again(self, name, stop):
        while not stop.is_set():
            for action in ("evict", "prefetch"):
                self.call(f"/v1/variants/{name}/{action}", b"")
            while not stop.is_set() and self.row(name)["state"] != "resident":
                time.sleep(0.1)

    def tpot_ms(self, n_requests):
        command = [self.binary, "bench", "serve", "--url", self.url, "--no-baseline", "--model", ",".join(ASKED),
                   "--mix", "uniform", "--num-prompts", str(n_requests), "--max-concurrency", "4", "--input-len", "16",
                   "--output-len", "24", "--json"]
        done = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert done["completed"] == n_requests, done
        return done["median_tpot_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deltafold")
    parser.add_argument("family", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8, help="of a phase; four run at once")
    options, flags = parser.parse_known_args()
    write_tokenizer(options.family / "base")
    server = Server(options.deltafold, options.family, flags)
    try:
        server.tpot_ms(4)
        ratios = []
        for _ in range(options.rounds):
            alone = server.tpot_ms(options.requests)
            stop, before, start = threading.Event(), server.n_loads(), time.monotonic()
            threads = [threading.Thread(target=server.load_again_and_again, args=(name, stop)) for name in LOADED]
            for thread in threads:
                thread.start()
            loading, seconds = server.tpot_ms(options.requests), time.monotonic() - start
            n_loads = server.n_loads() - before
            stop.set()
            for thread in threads:
                thread.join()
            rate = n_loads * server.row(LOADED[0])["resident_bytes"] / seconds / 1e6
            ratios.append(loading / alone)
            print(f"median TPOT {alone:.1f} ms alone, {loading:.1f} ms with {n_loads} loads at {rate:.0f} MB/s: "
                  f"{ratios[-1]:.3f}", flush=True)
        print(f"median ratio {statistics.median(ratios):.3f}, rounds {min(ratios):.3f} to {max(ratios):.3f}")
    finally:
        server.process.terminate()
        server.process.wait(60)


if __name__ == "__main__":
    main()
