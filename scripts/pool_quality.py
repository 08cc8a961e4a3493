#!/usr/bin/env python3
"""What adapters keep of their scores in a pool of few slots: by policy, beside averages of factors.

    scripts/pool_quality.py BINARY BASE ADAPTERS EVAL [--slots 3 4 6 8] [--items 100] [--threads 2] [--work DIR]

ADAPTERS holds PEFT adapters of one rank; EVAL a file lora-NAME.jsonl for each. Prints a table: mean over the adapters of
score / own adapter's score. The average of factors uses the grouping that kmerge chose. A refused adapter counts 0.
"""
import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def scores(args, placed):
    """By name: the share of right answers of the adapter in placed[name]."""
    flags = []
    for name, adapter in placed.items():
        flags += ["--variant", f"{name}={adapter}", "--task", f"{name}={args.eval / f'lora-{name}.jsonl'}"]
    done = run(args.binary, "eval", "--base", args.base, *flags, "--items", args.items, "--no-base", "--threads",
               args.threads, "--json")
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return {row["variant"]: row["correct"] / row["n"] for row in json.loads(done.stdout)["results"]}


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    width = {"F32": 4, "BF16": 2}
    tensors = {}
    for name, entry in header.items():
        raw = data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]]
        n = len(raw) // width[entry["dtype"]]
        if entry["dtype"] == "F32":
            values = struct.unpack(f"<{n}f", raw)
        else:
            words = struct.unpack(f"<{n}H", raw)
            values = struct.unpack(f"<{n}f", struct.pack(f"<{n}I", *(word << 16 for word in words)))
        tensors[name] = (entry["shape"], values)
    return tensors


def average_factors(members, target):
    target.mkdir()
    shutil.copy(members[0] / "adapter_config.json", target)
    read = [read_tensors(member / "adapter_model.safetensors") for member in members]
    header, data = {}, b""
    for name, (shape, _) in read[0].items():
        columns = zip(*(tensors[name][1] for tensors in read))
        values = [sum(column) / len(members) for column in columns]
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (target / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensor_bytes(adapter):
    data = (adapter / "adapter_model.safetensors").read_bytes()
    return len(data) - 8 - struct.unpack("<Q", data[:8])[0]


def cell(got, own):
    return f"{sum(got.get(name, 0) / own[name] for name in own) / len(own):.3f} ({len(got)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("binary", "base", "adapters", "eval"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--slots", type=int, nargs="+", default=[3, 4, 6, 8])
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-error", default="0.8")
    parser.add_argument("--work", type=pathlib.Path)
    args = parser.parse_args()
    names = sorted(path.name for path in args.adapters.iterdir() if (args.eval / f"lora-{path.name}.jsonl").exists())
    own = scores(args, {name: args.adapters / name for name in names})
    one = max(tensor_bytes(args.adapters / name) for name in names)
    flags = {"kmerge": [], "kmerge++ q0.9": ["--policy", "kmerge++", "--threshold", "q0.9"],
             f"bounded e={args.max_error}": ["--policy", "bounded", "--max-error", args.max_error]}
    print(f"{len(names)} adapters, {args.items} items each; mean of score / own score (ids answered)")
    print("| slots | " + " | ".join([*flags, "factors averaged"]) + " |\n|" + " --- |" * (len(flags) + 2))
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        for n_slots in args.slots:
            cells, groups = [], {}
            for label, extra in flags.items():
                pool = pathlib.Path(work) / f"{n_slots}-{len(cells)}"
                run(args.binary, "pool", "create", pool, "--bytes", n_slots * one, *extra)
                for name in names:
                    run(args.binary, "pool", "add", pool, name, args.adapters / name)
                slots = json.loads(run(args.binary, "pool", "list", pool, "--json").stdout)
                placed = {m["id"]: s["directory"] for s in slots for m in s["members"]}
                if label == "kmerge":
                    groups = {s["slot"]: [m["id"] for m in s["members"]] for s in slots}
                cells.append(cell(scores(args, placed), own))
            averaged = {}
            for slot, members in groups.items():
                target = pathlib.Path(work) / f"{n_slots}-factors-{slot}"
                average_factors([args.adapters / member for member in members], target)
                averaged.update(dict.fromkeys(members, target))
            cells.append(cell(scores(args, averaged), own))
            print(f"| {n_slots} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
