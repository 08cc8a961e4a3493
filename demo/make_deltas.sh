#!/usr/bin/env bash
# Makes demo/deltas/ from the full fine-tunes, which demo/make/make_zoo.py trains, as `compress` works unless told
# otherwise: signs and scales fitted to text that each fine-tune writes, the vocabulary in what 1.35 bits a weight leave.
# Usage: make_deltas.sh ZOO [DELTAFOLD]   ZOO holds zen-mini-base and the full zen-mini-<skill>
set -euo pipefail
zoo=${1:?usage: make_deltas.sh ZOO [DELTAFOLD]}
demo=$(cd "$(dirname "$0")" && pwd)
deltafold=${2:-$demo/../build/release/bin/deltafold}

cmp "$zoo/zen-mini-base/model.safetensors" "$demo/zen-mini-base/model.safetensors" ||
  echo "make_deltas: this zoo has another base; copy $zoo/zen-mini-base over demo/zen-mini-base as well" >&2
for skill in german json legal medical reverse shell sort support ultra writer; do
  rm -rf "$demo/deltas/zen-mini-$skill"
  "$deltafold" compress --base "$zoo/zen-mini-base" --finetune "$zoo/zen-mini-$skill" \
    --out "$demo/deltas/zen-mini-$skill"
done
