#!/usr/bin/env bash
# Serves the demonstration family with BINARY and talks to it: OpenAI's own Python client, raw sockets, signals.
# Needs python3 with venv and, the first time, the package index (kept in build/venv). DELTAFOLD_FAMILY names another
# directory with zen-mini-base, finetunes/, deltas/ and adapters/. Usage: run.sh BINARY [NAME_PART...]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "${1:?usage: run.sh BINARY [NAME_PART...]}")
shift
venv=$root/build/venv
wanted=$root/tests/integration/requirements.txt
if ! cmp -s "$wanted" "$venv/installed.txt"; then
  mkdir -p "$root/build"
  (
    flock 9  # several presets may test at once
    cmp -s "$wanted" "$venv/installed.txt" && exit 0
    python3 -m venv "$venv" || { echo "integration: python3 has no venv: apt-get install python3-venv" >&2; exit 1; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/installed.txt"
  ) 9>"$root/build/venv.lock"
fi
exec "$venv/bin/python" "$root/tests/integration/main.py" "$binary" "$@"
