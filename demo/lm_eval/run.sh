#!/usr/bin/env bash
# Serves the demonstration's base with one of its variants and lets lm-eval score both over HTTP. Needs python3 with venv and, the
# first time, the package index (kept in build/lm-eval). Usage: run.sh BINARY [FLAGS OF lm_eval...]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "${1:?usage: run.sh BINARY [FLAGS OF lm_eval...]}")
shift
cd "$root" # the tasks name their questions from here
home=$root/build/lm-eval
wanted=demo/lm_eval/requirements.txt
if ! cmp -s "$wanted" "$home/installed.txt"; then
  python3 -m venv "$home/venv"
  "$home/venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$home/installed.txt"
fi

rm -f "$home/port"
"$binary" serve --model demo/zen-mini-base --delta-modules zen-mini-legal=demo/deltas/zen-mini-legal --port 0 \
  --port-file "$home/port" >"$home/serve.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" || true' EXIT
while [ ! -e "$home/port" ]; do
  kill -0 "$server" 2>/dev/null || { cat "$home/serve.log" >&2; exit 1; }
  sleep 0.1
done

# Everything is local: no model or data set is looked up.
export HF_HOME=$home/cache HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
url=http://127.0.0.1:$(cat "$home/port")/v1/completions
for model in zen-mini-base zen-mini-legal; do
  "$home/venv/bin/lm_eval" --model local-completions --include_path demo/lm_eval --tasks zen_legal_choice,zen_legal_exact \
    --model_args "model=$model,base_url=$url,tokenizer=demo/zen-mini-base,tokenizer_backend=huggingface,num_concurrent=4,${MODEL_ARGS:-tokenized_requests=True}" \
    "$@"
done
