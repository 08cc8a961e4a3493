#!/usr/bin/env bash
# Runs every micro-benchmark of a build and keeps the results as JSON in build/bench-results. Usage: run_bench.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: run_bench.sh BUILD_DIR}
mkdir -p build/bench-results
for bench in "$build"/bin/*_bench; do
  [ -x "$bench" ] || { echo "run_bench: no benchmark in $build/bin" >&2; exit 1; }
  "$bench" --benchmark_min_time=0.2 --benchmark_out="build/bench-results/$(basename "$bench").json" --benchmark_out_format=json
done
