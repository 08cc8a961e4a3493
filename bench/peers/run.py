#!/usr/bin/env python3
"""Other programs on models of equal size, next to ours, in one run: decode and prefill speed, memory for 1 and for 14
variants. Installs them by name into build/peers; nothing of theirs is committed.

  bench/peers/run.py                                  llama.cpp in bf16, Q8_0 and Q4_K
  bench/peers/run.py --transformers                   and transformers on CPU (gigabytes of wheels)
  bench/peers/run.py --shape tinyllama-1.1b --threads 1

Writes OUT.md and OUT.json. Run it with nothing else on the machine."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LLAMA_CPP = "node-llama-cpp@3.21.1"
GGUF = "gguf==0.19.0"
TRANSFORMERS = ["torch", "transformers"]
VARIANTS = 14


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def install(directory, with_transformers):
    """The Python that has what the scripts need."""
    venv = directory / "venv"
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", GGUF, "numpy", *(TRANSFORMERS if with_transformers else [])],
                   check=True)
    node = directory / "node"
    if not (node / "node_modules" / "node-llama-cpp").exists():
        if shutil.which("npm") is None:
            sys.exit("peers: npm is not there; install Node.js 20 or newer")
        say(f"installing {LLAMA_CPP}")
        node.mkdir(parents=True, exist_ok=True)
        (node / "package.json").write_text('{"name": "peers", "private": true, "type": "module"}\n')
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", LLAMA_CPP], cwd=node, check=True,
                       stdout=sys.stderr)
    return python


def run_json(command, codes=(0,), **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode not in codes or not done.stdout:
        sys.exit(f"peers: {' '.join(map(str, command))} failed with {done.returncode}")
    return json.loads(done.stdout)


def measure_ours(options, prefill_dtype="float32"):
    """One base with 14 variants in one process. Exit code 1 with a report: void, the multiply-add peak drifted."""
    say(f"deltafold, prompts in {prefill_dtype}")
    return run_json([options.binary, "bench", "model", "--shape", options.shape, "--variants", str(VARIANTS), "--threads",
                     str(options.threads), "--batch", "1", "--prompt-len", str(options.prompt), "--prefill-dtype",
                     prefill_dtype, "--json"], codes=(0, 1))


def our_row(name, report, variant):
    prompt = report["prompts"][0]
    kind = "variant" if variant else "base"
    memory = report["memory"]
    return {"name": name, "decode": 1e3 / prompt[f"{kind}_token_ms"],
            "prefill": prompt["prompt_tokens"] / (prompt[f"{kind}_ttft_ms"] * 1e-3),
            "bytes_1": memory["base_bytes"] + (memory["variant_bytes"] // VARIANTS if variant else 0),
            "bytes_14": memory["base_bytes"] + memory["variant_bytes"]}


def measure_llama_cpp(python, directory, config, kind, options):
    model = directory / f"{options.shape}-{kind}.gguf"
    if not model.exists():
        say(f"writing {model.name}")
        partial = model.with_suffix(".partial")
        subprocess.run([python, HERE / "gguf_model.py", config, partial, kind], check=True)
        partial.rename(model)
    say(f"llama.cpp {kind}")
    script = directory / "node" / "llama_cpp.mjs"  # beside node_modules, where imports are looked up
    shutil.copy(HERE / "llama_cpp.mjs", script)
    report = run_json(["node", script, model, str(options.threads), str(options.prompt), str(options.decode),
                       str(options.rounds)])
    size = model.stat().st_size
    if not options.keep:
        model.unlink()
    return {"name": f"llama.cpp {kind}", "decode": 1 / statistics.median(report["token_seconds"]),
            "prefill": options.prompt / statistics.median(report["prefill_seconds"]), "bytes_1": size,
            "bytes_14": VARIANTS * size, "rss_bytes": report["rss_bytes"], "build": report["build"]}


def measure_transformers(python, config, dtype, options):
    say(f"transformers {dtype}")
    report = run_json([python, HERE / "transformers_model.py", config, dtype, str(options.threads), str(options.prompt),
                       str(options.decode), str(options.rounds)])
    return {"name": f"transformers {dtype}", "decode": 1 / statistics.median(report["token_seconds"]),
            "prefill": options.prompt / statistics.median(report["prefill_seconds"]), "bytes_1": report["weight_bytes"],
            "bytes_14": VARIANTS * report["weight_bytes"], "rss_bytes": report["rss_bytes"], "build": report["build"]}


def gigabytes(n):
    return f"{n / 1e9:.2f} GB"


def read_speed(*reports):
    """Of the moments in which our runs, before and after the peers', decoded."""
    return statistics.mean(report["prompts"][0]["read_bytes_per_second"] for report in reports)


def render(rows, ours, read, options):
    limits = ours["limits"]["before"]
    base = rows[0]
    lines = [f"{options.shape}, {options.threads} threads, {read / 1e9:.1f} GB/s read, "
             f"{limits['flops_per_second'] / 1e9:.0f} GFLOP/s f32 multiply-add; prompt of {options.prompt} tokens, one "
             f"sequence. Ratios are to our base.", "",
             "| program | decode tokens/s | ratio | prefill tokens/s | ratio | weights, 1 variant | weights, 14 variants |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        lines.append(f"| {row['name']} | {row['decode']:.2f} | {row['decode'] / base['decode']:.2f} | "
                     f"{row['prefill']:.1f} | {row['prefill'] / base['prefill']:.2f} | {gigabytes(row['bytes_1'])} | "
                     f"{gigabytes(row['bytes_14'])} |")
    lines += ["", "Peers hold 14 fine-tunes as 14 whole files (their size is counted, one is measured); deltafold holds "
              "them as deltas beside one base."]
    for row in rows:
        if row["name"] == "llama.cpp bf16":
            # Nobody reads faster than memory: what a peer that is near that limit leaves to be won is 0.9 of it.
            share = row["decode"] * row["bytes_1"] / read
            lines.append(f"Decode of our base is to be min(1.6, 0.9 / its share of reading, {share:.2f}) = "
                         f"{min(1.6, 0.9 / share):.2f} times {row['name']}: it is {base['decode'] / row['decode']:.2f}.")
    builds = {row["name"].split()[0]: row["build"] for row in rows if "build" in row}
    lines += [f"{name}: {json.dumps(build)}" for name, build in builds.items()]
    return "\n".join(lines) + "\n"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "build" / "release" / "bin" / "deltafold")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512, help="tokens [512]")
    parser.add_argument("--decode", type=int, default=32, help="tokens a round [32]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--formats", default="bf16,q8_0,q4_k", help="of llama.cpp [bf16,q8_0,q4_k]")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the model files")
    parser.add_argument("--out", default=ROOT / "build" / "peers" / "report", help="without ending [build/peers/report]")
    return parser.parse_args()


def main():
    options = parse_arguments()
    directory = ROOT / "build" / "peers"
    directory.mkdir(parents=True, exist_ok=True)
    python = install(directory, options.transformers)
    first = measure_ours(options)
    config = directory / "config.json"
    config.write_text(json.dumps(first["config"]))
    rows = [our_row("deltafold, base bf16", first, False), our_row("deltafold, 1-bit variant on it", first, True)]
    ours = [first]
    if first["limits"]["before"]["dot_bf16_flops_per_second"] > 0:  # else there is no --prefill-dtype bfloat16
        ours.append(measure_ours(options, "bfloat16"))
        rows += [our_row("deltafold, base bf16, activations bf16", ours[-1], False),
                 our_row("deltafold, 1-bit variant on it, activations bf16", ours[-1], True)]
    for kind in options.formats.split(","):
        rows.append(measure_llama_cpp(python, directory, config, kind, options))
    if options.transformers:
        rows += [measure_transformers(python, config, dtype, options) for dtype in ("bfloat16", "float32")]
    again = measure_ours(options)  # whether the machine stayed the same
    drift = our_row("", again, False)["decode"] / rows[0]["decode"] - 1
    is_void = any(report["void"] for report in [*ours, again])
    report = {"void": is_void, "shape": options.shape, "threads": options.threads, "limits": first["limits"], "rows": rows,
              "decode_drift": drift}
    Path(f"{options.out}.json").write_text(json.dumps(report, indent=1) + "\n")
    text = render(rows, first, read_speed(first, again), options)
    text += f"\nOur base measured again at the end: decode {drift:+.1%}.\n"
    if is_void:
        text += "\nVoid: the multiply-add peak drifted during one of our runs. Run it again with nothing else running.\n"
    Path(f"{options.out}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
