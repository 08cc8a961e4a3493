#!/usr/bin/env python3
"""Checks the include direction: a folder of src/ includes only itself and folders further left. The order is read from
the line `base < tensor < ...` of ARCHITECTURE.md, so document and check cannot drift apart."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z_]+)/', re.MULTILINE)


def read_ranks():
    """Folder -> rank. Folders inside {a, b} share a rank and must not include each other."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    line = re.search(r"^base < .*$", text, re.MULTILINE)
    if not line:
        sys.exit("check_layers: ARCHITECTURE.md has no line that starts with 'base < '")
    ranks = {}
    for rank, group in enumerate(line.group().split("<")):
        for folder in re.findall(r"[a-z_]+", group):
            ranks[folder] = rank
    return ranks


def sources():
    listed = subprocess.run(["git", "ls-files", "src/*.h", "src/*.cc"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split()]
    return [p for p in (ROOT / "src").rglob("*") if p.suffix in (".h", ".cc")]  # an exported tree without .git


def main():
    ranks = read_ranks()
    folders = {p.name for p in (ROOT / "src").iterdir() if p.is_dir()}
    problems = []
    n_includes = 0
    for path in filter(Path.exists, sources()):
        folder = path.relative_to(ROOT / "src").parts[0]
        if folder == "testing":  # helpers of the tests stand beside the order
            continue
        if folder not in ranks:
            problems.append(f"src/{folder}/ is not in the include order of ARCHITECTURE.md")
            continue
        is_test = path.stem.endswith(("_test", "_bench", "_fixture"))
        for target in INCLUDE.findall(path.read_text()):
            if target not in folders:  # an outside library
                continue
            n_includes += 1
            if target == folder or (is_test and target == "testing"):
                continue
            if ranks.get(target, 99) >= ranks[folder]:
                problems.append(f"{path.relative_to(ROOT)}: {folder}/ must not include {target}/")
    for problem in sorted(set(problems)):
        print(f"check_layers: {problem}", file=sys.stderr)
    if not n_includes:
        sys.exit("check_layers: found no include at all; is this the repository?")
    print(f"check_layers: {n_includes} includes, {len(problems)} against the order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
