#!/usr/bin/env python3
"""What a base's fine-tunes keep under each code: compress, eval and plan, one table.

Takes a base and full fine-tunes of it (directories, or hub ids that the local Hugging Face cache holds), makes a delta of
each fine-tune with each code, measures base, full fine-tunes and deltas beside each other, and plans the memory. Writes
into --out: deltas/, family.json (what was measured), results.json (every figure), quality.svg and quality.txt, the table
that it prints too. Deltas that are there already are used again. Standard library only.

A code is what `compress --code` takes, CODE/none the same with `--calibrate none`, and `default` no --code at all.

Usage: quality.py --base Qwen/Qwen3-0.6B --finetune ORG/FINETUNE [--finetune NAME=MODEL] [--task NAME=FILE.jsonl]
                  [--text FILE] [--code scalar/none,rank1,auto,default] [--out build/quality]"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODES = "scalar/none,row/none,rank1/none,rank1,default,auto"
PLANNED = "scalar,row,rank1,planes2,auto"


class QualityError(Exception):
    """A command failed; the message is for the user."""


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)  # progress stays visible
    if done.returncode:
        raise QualityError(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def pairs(given):
    """NAME=VALUE, or VALUE alone, whose last part is then the name."""
    named = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            name, value = Path(text.rstrip("/")).name, text
        if name in named:
            raise QualityError(f"two are called {name}: give NAME=... for one of them")
        named[name] = value
    return named


def flags_of(code):
    """What `compress` is given for a code of --code."""
    name, _, source = code.partition("/")
    if source not in ("", "none"):
        raise QualityError(f"--code {code}: after the / only none may stand")
    return [*([] if name == "default" else ["--code", name]), *(["--calibrate", "none"] if source else [])]


def compress(options, name, model, code):
    """The delta's directory, and seconds; None when it was there already."""
    out = options.out / "deltas" / f"{name}-{code.replace(':', '').replace('/', '-')}"
    if out.is_dir():
        return out, None
    out.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    run(options.binary, "compress", "--base", options.base, "--model", model, "--out", out, *flags_of(code),
        *options.compress.split())
    return out, time.monotonic() - start


def compress_all(options, finetunes):
    variants = []
    for name, model in finetunes.items():
        codes = {}
        for code in options.code.split(","):
            directory, seconds = compress(options, name, model, code)
            codes[code] = str(directory.resolve())
            print(f"  {name} {code}: " + ("there already" if seconds is None else f"{seconds:.1f} s"), flush=True)
        local = Path(model)
        variants.append({"name": name, "full": str(local.resolve()) if local.exists() else model, "codes": codes})
    return variants


def add_tasks(variants, tasks):
    for variant in variants:
        path = tasks.pop(variant["name"], None)
        if path:
            variant["task"] = str(Path(path).resolve())
    if tasks:
        raise QualityError(f"--task names no fine-tune: {', '.join(tasks)}")


def evaluate(options, variants):
    base = Path(options.base)
    family = {"base": {"path": str(base.resolve()) if base.exists() else options.base}, "variants": variants}
    path = options.out / "family.json"
    path.write_text(json.dumps(family, indent=1) + "\n")
    command = [options.binary, "eval", "--family", path, "--plot", options.out / "quality.svg", "--report",
               options.out / "results.json"]
    if options.text:
        command += ["--text", options.text]
    if options.items:
        command += ["--items", options.items]
    return run(*command, *options.eval.split())


def plan(options, n_variants):
    command = [options.binary, "plan", options.base, "--variants", max(n_variants, 1), "--code", PLANNED]
    if options.memory:
        command += ["--memory", options.memory]
    return run(*command)


def work(options):
    if not options.binary.is_file():
        raise QualityError(f"{options.binary} is missing; `make` builds it")
    finetunes, tasks = pairs(options.finetune), pairs(options.task)
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"Compressing {len(finetunes)} fine-tunes with {options.code}", flush=True)
    variants = compress_all(options, finetunes)
    add_tasks(variants, tasks)
    print("Measuring", flush=True)
    table = evaluate(options, variants) + "\n" + plan(options, options.variants or len(variants))
    (options.out / "quality.txt").write_text(table)
    print(table, end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, help="directory, or hub id in the local cache")
    parser.add_argument("--finetune", required=True, action="append", metavar="[NAME=]MODEL")
    parser.add_argument("--task", action="append", default=[], metavar="NAME=FILE.jsonl",
                        help='questions of a fine-tune: {"messages": [...], "answer": "..."} a line')
    parser.add_argument("--text", type=Path, default=ROOT / "demo/eval/text.txt", help="held-out text (default: a bundled one)")
    parser.add_argument("--code", default=CODES, help=f"default {CODES}")
    parser.add_argument("--items", type=int, help="questions of a task (default all)")
    parser.add_argument("--variants", type=int, help="variants to plan for (default: the fine-tunes given)")
    parser.add_argument("--memory", help="memory to plan for, as in 24GB")
    parser.add_argument("--compress", default="", help="further flags of compress, in one word")
    parser.add_argument("--eval", default="", help="further flags of eval, in one word")
    parser.add_argument("--out", type=Path, default=ROOT / "build/quality")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/bin/deltafold")
    try:
        work(parser.parse_args())
    except QualityError as error:
        print(f"quality: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
