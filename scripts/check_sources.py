#!/usr/bin/env python3
"""Sizes, words and strays in the sources. Prints a report of file and function lengths; fails on what no file of ours
may be: longer than the hard limits, marked as unfinished, generated, or tied to one machine."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USUAL_FILE, MAX_FILE = 400, 700          # lines: what a file usually stays under, what it never exceeds
USUAL_FUNCTION, MAX_FUNCTION = 40, 100
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|[Nn]ot implemented|[Uu]nimplemented|[Pp]laceholder|[Ss]tub(bed)?)\b")
MACHINE = re.compile(r"(?<![\w.])/(home|root|work)/")
GENERATED = re.compile(r"\.(o|a|so|pb\.h|pb\.cc|pyc|orig|rej|gch)$")
# clang-format puts a function's closing brace at the indentation of its first line, which is all this relies on.
OPENS = re.compile(r"^( {0,2})\S.*\)[^;]*\{$")


def functions(lines):
    """(first line, length) of each function; a wrapped signature counts from its last line."""
    start, indent = None, ""
    for number, line in enumerate(lines):
        if start is None:
            opening = OPENS.match(line)
            if opening and not line.lstrip().startswith(("namespace", "//", "#")):
                start, indent = number, opening.group(1)
        elif line.rstrip() in (indent + "}", indent + "};"):
            yield start + 1, number - start + 1
            start = None


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def main():
    names = subprocess.run(["git", "ls-files", "src", "apps", "fuzz", "rust"], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.split()
    problems, long_files, long_functions, file_lengths, function_lengths = [], [], [], [], []
    for name in names:
        if GENERATED.search(name):
            problems.append(f"{name}: generated files do not belong here")
        path = ROOT / name
        if path.suffix not in (".h", ".cc", ".rs") or not path.exists():
            continue
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            for pattern, why in ((UNFINISHED, "a word of unfinished work"), (MACHINE, "a path of one machine")):
                found = pattern.search(line)
                if found:
                    problems.append(f"{name}:{number}: '{found.group()}' is {why}")
        is_test = path.stem.endswith("_test")
        file_lengths.append(len(lines))
        if len(lines) > USUAL_FILE:
            long_files.append(f"{name}: {len(lines)} lines")
        if len(lines) > MAX_FILE:
            problems.append(f"{name}: {len(lines)} lines, at most {MAX_FILE}")
        if path.suffix == ".rs":
            continue
        for start, length in functions(lines):
            function_lengths.append(length)
            if length > USUAL_FUNCTION:
                long_functions.append(f"{name}:{start}: {length} lines")
            if length > MAX_FUNCTION and not is_test:
                problems.append(f"{name}:{start}: a function of {length} lines, at most {MAX_FUNCTION}")

    print(f"files: {len(file_lengths)}, p90 {percentile(file_lengths, .9)} lines; "
          f"functions: {len(function_lengths)}, p90 {percentile(function_lengths, .9)}, "
          f"p99 {percentile(function_lengths, .99)} lines")
    for title, rows in ((f"files over {USUAL_FILE} lines", long_files),
                        (f"functions over {USUAL_FUNCTION} lines", long_functions)):
        if rows:
            print(f"{title}:\n  " + "\n  ".join(rows))
    for problem in problems:
        print(f"check_sources: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
