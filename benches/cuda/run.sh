#!/usr/bin/env bash
# Burn on an NVIDIA GPU: every strategy's step time, the peak of its pool, and what nvidia-smi sees meanwhile.
# benches/cuda/run.sh [FOLDER for what comes out] [more flags of `rekindle bench`]; REKINDLE names the command (docs/cuda.md).
set -euo pipefail
here=$(dirname "$0")
out=${1:-cuda-figures}
shift || true
mkdir -p "$out"
rekindle=${REKINDLE:-rekindle}

# GPT-2 small's blocks, with bytes for tokens.
size=(--model gpt --layers 12 --width 768 --heads 12 --batch 8 --sequence 1024 --burn --dropout 0)
strategies=plain,balanced,every-1,full,optimal-50%,optimal-25%

TZ=UTC nvidia-smi --query-gpu=timestamp,memory.used --format=csv,noheader,nounits -lms 20 >"$out/smi.csv" &
watching=$!
trap 'kill "$watching" 2>/dev/null || true' EXIT
"$rekindle" bench --device cuda "${size[@]}" --strategies "$strategies" --rounds "${ROUNDS:-5}" --cut blocks --json "$@" >"$out/bench.json" \
  || echo "rekindle bench ended with $?"
kill "$watching" 2>/dev/null || true
python3 "$here/table.py" "$out/bench.json" "$out/smi.csv" | tee "$out/table.txt"
