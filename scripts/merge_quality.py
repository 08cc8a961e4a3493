#!/usr/bin/env python3
"""What merging checkpoints gains: every model by itself, then merged in several ways, on the same questions.

Each model and each merge is measured by `deltafold eval`: exact match of the greedy answers, and cross-entropy of the
reference answers. The interval (95 %, paired bootstrap over the questions) is of the difference to the best single model
in exact match. That one is chosen on the same questions, which favours it. Merges go to --out and are used again when
they are there already. Standard library only.

Usage: merge_quality.py BASE MODEL [MODEL ...] --questions FILE.jsonl [--method "svd-average --rank 16"] [--out DIR]
Without --method: the plain mean, svd-average at ranks 4, 16 and 64 and at 0.9 of the energy, monosoup of each and of all."""
import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METHODS = ["linear", "svd-average --rank 4", "svd-average --rank 16", "svd-average --rank 64", "svd-average --energy 0.9",
           "monosoup", "monosoup --effective-rank"]
N_RESAMPLES = 2000


class MergeQualityError(Exception):
    """A command failed; the message is for the user."""


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)  # progress stays visible
    if done.returncode:
        raise MergeQualityError(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def merge(options, models, method):
    """The merged checkpoint's directory."""
    of = models[0].name if len(models) == 1 else f"{len(models)}-{models[0].name}"
    out = options.out / f"{of}-{method.replace(' ', '').replace('--', '-')}"
    if not out.is_dir():
        name, *settings = method.split()
        given = [word for model in models for word in ("--model", model)]
        run(options.binary, "merge", name, *settings, "--base", options.base, *given, "--out", out,
            *(["--dtype", options.dtype] if options.dtype else []))
    return out


def measure(options, name, directory):
    replies = options.out / f"{name.replace(' ', '').replace('/', '-')}.jsonl"
    report = json.loads(run(options.binary, "eval", "--base", options.base, "--variant", f"model={directory}", "--task",
                            options.questions, "--items", options.items, "--no-base", "--replies", replies, "--json"))
    row = next(row for row in report["results"] if row["code"] == "full")
    right = [json.loads(line)["right"] for line in replies.read_text().splitlines()]
    return {"name": name, "right": right, "exact_match": row["exact_match"], "cross_entropy": row["answer_ce"]}


def interval(row, best):
    """95 % of the difference in points, questions drawn with replacement."""
    draw, n = random.Random(1), len(row["right"])
    differences = [int(a) - int(b) for a, b in zip(row["right"], best["right"])]
    sums = sorted(100 * sum(draw.choices(differences, k=n)) / n for _ in range(N_RESAMPLES))
    return sums[N_RESAMPLES // 40], sums[-1 - N_RESAMPLES // 40]


def table(rows, n_single):
    best = max(rows[:n_single], key=lambda row: (row["exact_match"], -row["cross_entropy"]))
    yield f"| model | exact match, {len(best['right'])} questions | to the best single one | cross-entropy of the answers |"
    yield "| --- | ---: | ---: | ---: |"
    for row in rows:
        low, high = interval(row, best)
        gain = f"{row['exact_match'] - best['exact_match']:+.1f} ({low:+.1f} to {high:+.1f})" if row is not best else "-"
        yield f"| {row['name']} | {row['exact_match']:.1f} | {gain} | {row['cross_entropy']:.4f} |"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="what they were trained from: a directory or hub id")
    parser.add_argument("models", nargs="+", type=Path, help="checkpoints")
    parser.add_argument("--questions", required=True, help="one JSON object a line, as eval --task")
    parser.add_argument("--items", default=0, type=int, help="of the questions [all]")
    parser.add_argument("--method", action="append", help="as deltafold merge has it, with its flags; repeatable")
    parser.add_argument("--dtype", help="stored type of the merged weights [the base's]")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "merge_quality")
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "bin" / "deltafold")
    return parser.parse_args()


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [measure(options, model.name, model) for model in options.models]
    for method in options.method or METHODS:
        if method.startswith("monosoup"):  # the one that edits a single checkpoint
            for model in options.models:
                rows.append(measure(options, f"{method} of {model.name}", merge(options, [model], method)))
        if len(options.models) > 1:
            rows.append(measure(options, f"{method} of all", merge(options, options.models, method)))
    print("\n".join(table(rows, len(options.models))))
    (options.out / "results.json").write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MergeQualityError as error:
        sys.exit(f"merge_quality: {error}")
