#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All measurements on a machine with a GPU: bench/gpu.sh PATH_OF_SATURATE [OUTPUT.jsonl]
# JSON lines, one a case; what each case is compared with is in bench/README.md.
set -euo pipefail
program=$1 out=${2:-/dev/stdout}
# Adds the commit of this checkout to lines that do not say theirs.
record() { python3 "$(dirname "${BASH_SOURCE[0]}")/../tools/check_results.py" --stamp >> "$out"; }
step() { "$program" bench step "$@" | record; }

step --preset base --batch 25088 --length 32 --set data.vocab_size=32000
step --preset base --batch 25088 --length 32 --set data.vocab_size=32000 --set train.graph=false
step --preset base --batch 2048 --length 32 --set data.vocab_size=32000
step --preset base --batch 2048 --length 32 --set data.vocab_size=32000 --set train.graph=false
step --preset big --batch 25088 --length 32 --set data.vocab_size=32000
step --preset gpt2-124m --batch 32768 --length 1024
for shape in "784 8 32 64" "256 8 64 64" "32 12 1024 64" "8 16 2048 128"; do
  # shellcheck disable=SC2086
  "$program" bench attention --precision bf16 --shape $shape | record
  # shellcheck disable=SC2086
  "$program" bench attention --precision bf16 --causal --shape $shape | record
done
for shape in "25088 512 512" "25088 2048 512" "25088 512 2048" "25088 32000 512" "4096 4096 4096" "8192 8192 8192"; do
  # shellcheck disable=SC2086
  "$program" bench gemm --precision bf16 --shape $shape | record
done
# What the doctor costs and whether it is right, where python3 has PyTorch.
doctor="$(dirname "${BASH_SOURCE[0]}")/../tests/doctor"
if python3 -c 'import torch' 2>/dev/null; then
  truth="$(mktemp -d)"
  python3 "$doctor/cost.py" --doctor "$program" | record || echo "bench/gpu.sh: the doctor costs more than it may" >&2
  python3 "$doctor/truth.py" measure "$truth/measure" >&2 || echo "bench/gpu.sh: truth.py measure failed" >&2
  python3 "$doctor/truth.py" watch "$truth/watch" --doctor "$program" >&2 || echo "bench/gpu.sh: truth.py watch failed" >&2
  for verb in measure watch; do
    [[ -f $truth/$verb/measured.jsonl ]] || continue
    python3 "$doctor/truth.py" judge "$truth/$verb" --doctor "$program" --jsonl "$truth/$verb.jsonl" >&2 ||
      echo "bench/gpu.sh: the doctor was wrong ($verb)" >&2
    record < "$truth/$verb.jsonl"
  done
  rm -r "$truth"
fi
# Programs of single families, where they were built (ninja saturate_gemm_bench saturate_fp16x3_bench ...).
benches="$(dirname "$program")/../bench"
for bench in "$benches"/saturate_*_bench; do
  [[ -x $bench ]] || continue
  "$bench" | grep '^{' | record || echo "bench/gpu.sh: $bench failed or printed no line" >&2
done
