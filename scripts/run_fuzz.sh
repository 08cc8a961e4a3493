#!/usr/bin/env bash
# Runs every fuzz target of a build for FUZZ_SECONDS (30). Corpora live in build/corpus, so that a next run goes on from
# there; a crash leaves its input beside them and fails. Usage: run_fuzz.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: run_fuzz.sh BUILD_DIR}
seconds=${FUZZ_SECONDS:-30}
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

n_targets=0
for target in "$build"/bin/*_fuzz; do
  [ -x "$target" ] || { echo "run_fuzz: no fuzz target in $build/bin" >&2; exit 1; }
  name=$(basename "$target")
  corpus=build/corpus/$name
  mkdir -p "$corpus"
  while read -r pattern; do  # small files of the tests to start from
    for seed in $pattern; do
      [ -f "$seed" ] || { echo "run_fuzz: fuzz/$name.seeds names $pattern: no such file" >&2; exit 1; }
      [ "$(stat -c %s "$seed")" -gt 65536 ] || cp "$seed" "$corpus/$(tr / _ <<<"$seed")"
    done
  done <"fuzz/$name.seeds"
  log=build/corpus/$name.log
  # 2 GB: a reader that allocates by a claimed size is a finding, not a crash of the machine.
  if ! "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
      -artifact_prefix="build/corpus/$name-" "$corpus" >"$log" 2>&1; then
    tail -40 "$log" >&2
    echo "run_fuzz: $name failed; its input is build/corpus/$name-*" >&2
    exit 1
  fi
  n_targets=$((n_targets + 1))
  printf '%-24s %s runs, clean\n' "$name" "$(awk '/number_of_executed_units/ {print $2}' "$log")"
done
echo "fuzz: $n_targets targets, $seconds s each, clean"
