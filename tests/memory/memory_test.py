#!/usr/bin/env python3
"""Measures the memory promises on a synthetic family and fails when one is broken.

  memory_test.py DELTAFOLD SYNTHETIC_FAMILY DIRECTORY [--shape small|qwen3-0.6b] [--variants N]

1. compress: anonymous memory <= 3 x the largest tensor + 100 MB.
2. serve with N variants, all answering at once: anonymous plus resident mapped pages <= base + sum of deltas + KV cache
   + 150 MB (files on disk counted for base and deltas; the process's own code and tables are part of the 150 MB).
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request

MB = 1 << 20
KV_BYTES = 256 * MB
DEMO_BASE = os.path.join(os.path.dirname(__file__), "..", "..", "demo", "zen-mini-base")


def memory(pid):
    """(anonymous, resident) bytes of a process now; (0, 0) once it is gone."""
    fields = {}
    try:
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                key, _, value = line.partition(":")
                if key.startswith("Rss"):
                    fields[key] = int(value.split()[0]) * 1024
    except FileNotFoundError:
        pass
    anonymous = fields.get("RssAnon", 0)
    return anonymous, anonymous + fields.get("RssFile", 0) + fields.get("RssShmem", 0)


def safetensors_header(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header


def largest_tensor(path):
    return max(end - begin for begin, end in (t["data_offsets"] for t in safetensors_header(path).values()))


def weights_bytes(directory):
    return sum(os.path.getsize(os.path.join(directory, f)) for f in os.listdir(directory) if f.endswith(".safetensors"))


def measure_compress(binary, family):
    out = f"{family}/compressed"
    shutil.rmtree(out, ignore_errors=True)
    command = [binary, "compress", "--base", f"{family}/base", "--model", f"{family}/fine-tune", "--out", out,
               "--code", "rank1", "--calibrate", "none"]  # a calibration has a bound of its own
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(process.pid)[0])
        time.sleep(0.002)
    if process.returncode != 0:
        sys.exit(f"compress failed with {process.returncode}")
    seconds = time.monotonic() - start
    limit = 3 * largest_tensor(f"{family}/base/model.safetensors") + 100 * MB
    return {"what": "compress, anonymous", "peak": peak, "limit": limit, "seconds": round(seconds, 2)}


def wait_until_ready(port_file, process):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"serve ended early with {process.returncode}")
        try:
            with open(port_file) as file:
                port = int(file.read())
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5)
            return port
        except (OSError, ValueError):
            time.sleep(0.05)
    sys.exit("serve was not ready within 300 s")


def ask(port, model):
    body = {"model": model, "prompt": list(range(1, 97)), "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["usage"]["completion_tokens"]


def measure_serve(binary, family, n_variants):
    port_file = f"{family}/port"
    if os.path.exists(port_file):
        os.remove(port_file)
    names = [f"delta-{i}" for i in range(n_variants)]
    command = [binary, "serve", "--model", f"{family}/base", "--served-model-name", "base", "--port", "0", "--port-file",
               port_file, "--kv-cache-bytes", str(KV_BYTES), "--max-model-len", "512", "--delta-modules"]
    command += [f"{name}={family}/{name}" for name in names]
    start = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        port = wait_until_ready(port_file, process)
        seconds = time.monotonic() - start
        peak = 0
        with concurrent.futures.ThreadPoolExecutor(n_variants + 1) as pool:
            answers = [pool.submit(ask, port, name) for name in ["base"] + names]
            while not all(answer.done() for answer in answers):
                peak = max(peak, memory(process.pid)[1])
                time.sleep(0.01)
            tokens = [answer.result() for answer in answers]
        if tokens != [8] * (n_variants + 1):
            sys.exit(f"expected 8 tokens from every variant, got {tokens}")
    finally:
        process.terminate()
        process.wait(60)
    base = weights_bytes(f"{family}/base")
    deltas = sum(weights_bytes(f"{family}/{name}") for name in names)
    limit = base + deltas + KV_BYTES + 150 * MB
    return {"what": f"serve base + {n_variants} deltas, resident", "peak": peak, "limit": limit,
            "seconds": round(seconds, 2), "base": base, "deltas": deltas, "copies": base * (n_variants + 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deltafold")
    parser.add_argument("synthetic_family")
    parser.add_argument("directory")
    parser.add_argument("--shape", default="small")
    parser.add_argument("--variants", type=int, default=14)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    family = os.path.abspath(f"{options.directory}/{options.shape}")
    os.makedirs(family, exist_ok=True)
    subprocess.run([options.synthetic_family, family, options.shape, str(options.variants)], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(DEMO_BASE, name), f"{family}/base/{name}")

    results = [measure_compress(options.deltafold, family),
               measure_serve(options.deltafold, family, options.variants)]
    for result in results:
        result["pass"] = result["peak"] <= result["limit"]
        if not options.json:
            print(f"{result['what']:<36} peak {result['peak'] / MB:8.1f} MB  limit {result['limit'] / MB:8.1f} MB  "
                  f"{result['seconds']:6.2f} s  {'pass' if result['pass'] else 'MISS'}")
    if options.json:
        print(json.dumps({"shape": options.shape, "variants": options.variants, "results": results}, indent=2))
    sys.exit(0 if all(result["pass"] for result in results) else 1)


if __name__ == "__main__":
    main()
