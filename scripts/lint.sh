#!/usr/bin/env bash
# All that a machine can say about the sources: format, include direction, sizes, words, clang-tidy.
# Usage: lint.sh BUILD_DIR. clang-tidy reads the files that differ from the upstream branch; LINT_ALL=1: all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: lint.sh BUILD_DIR}

git ls-files -z '*.h' '*.cc' | xargs -0 clang-format-19 --dry-run -Werror
python3 scripts/check_layers.py
python3 scripts/check_sources.py

changed() {
  git diff --name-only --diff-filter=d "$(git merge-base HEAD '@{upstream}')" -- '*.cc'
  git ls-files --others --exclude-standard -- '*.cc'
}
if [ -n "${LINT_ALL:-}" ] || ! git rev-parse --quiet --verify '@{upstream}' >/dev/null; then
  files=$(git ls-files 'src/*.cc' 'apps/*.cc')
else
  files=$(changed | grep -E '^(src|apps)/' || true)
fi
quiet() { grep -vE '^[0-9]+ warnings? generated|^\[[0-9/]+\] Processing file' || true; }
[ -z "$files" ] || xargs -P "$(nproc)" -n 4 clang-tidy-19 --quiet -p "$build" <<<"$files" 2>&1 | quiet
echo "lint: clean"
