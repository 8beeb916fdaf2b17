#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every comparison with PyTorch on a machine with a GPU, its python3 having PyTorch, transformers and the Python package:
# PYTHONPATH=build/python bench/peers.sh [OUTPUT.jsonl]
# A comparison that fails says so on standard error and the others go on. Takes about ten minutes on an H200.
set -euo pipefail
out=${1:-/dev/stdout} peers="$(dirname "${BASH_SOURCE[0]}")/peers"
record() { python3 "$peers/../../tools/check_results.py" --stamp >> "$out"; }
run() { python3 "$peers/$1" "${@:2}" | record || echo "bench/peers.sh: $* failed" >&2; }

for mode in eager graphs; do
  run pytorch_step.py --preset base --batch 25088 --mode "$mode"
  run pytorch_step.py --preset base --batch 2048 --mode "$mode"
  run pytorch_step.py --preset gpt2-124m --batch 32768 --length 1024 --vocab 50304 --mode "$mode"
done

tokens=() # 16k tokens of width 2048
for size in 64 128; do
  for length in 512 1024 2048 4096 8192 16384; do tokens+=(--shape $((16384 / length)) $((2048 / size)) "$length" "$size"); done
done
run pytorch_attention.py "${tokens[@]}" --only cudnn saturate
run pytorch_attention.py "${tokens[@]}" --causal --only cudnn saturate
run pytorch_attention.py --shape 32 12 1024 64 --causal
run pytorch_attention.py --shape 784 8 32 64 --shape 256 8 64 64
run pytorch_attention.py --shape 4 16 1024 64 --dtype f16
run pytorch_attention.py --shape 4 16 1024 64 --shape 4 16 1024 128 --dtype f32
run pytorch_attention.py --shape 4 16 1024 64 --shape 4 16 1024 128 --dtype f32 --causal
run pytorch_packed_attention.py
run pytorch_attention_models.py
python3 "$peers/transformers_step.py" >&2 || echo "bench/peers.sh: transformers_step.py failed" >&2
