#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fine-tuning on Multi30k en-de: a model of the first half of the pairs goes on with the second half.
#   bench/finetune_multi30k.sh PROGRAM FOLDER
# FOLDER holds train, val and test_2016_flickr, .en and .de. Prints BLEU and chrF of test 2016 and the seconds of each
# run, start to end. The settings are those of examples/multi30k-ende.toml; SETTINGS="--set key=value ..." goes to every
# run, after everything else; FULL_STEPS and TUNE_STEPS are the steps of a run from the beginning and of a fine-tuned one.
set -euo pipefail
program=$(realpath "$1") data=$(realpath "$2")
config=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../examples/multi30k-ende.toml")
full=${FULL_STEPS:-8000} tune=${TUNE_STEPS:-3000}
read -ra settings <<<"${SETTINGS:-}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for side in en de; do
  head -n 14500 "$data/train.$side" >"first.$side"
  tail -n +14501 "$data/train.$side" >"second.$side"
  cp "$data/train.$side" "all.$side"
done
# A model that is trained needs no long warm-up, and smaller steps than one that knows nothing.
tuning=(--set "train.max_steps=$tune" --set optimizer.lr=5e-4 --set schedule.warmup_steps=400)

run() {  # run NAME TEXT SETTINGS...
  local name=$1 text=$2 begin end
  shift 2
  begin=$(date +%s.%N)
  "$program" train --config "$config" --train "$text.en" "$text.de" --valid "$data/val.en" "$data/val.de" --out "$name" \
    --quiet "$@" "${settings[@]}" 2>"$name.log" || { cat "$name.log" >&2; exit 1; }
  end=$(date +%s.%N)
  "$program" eval --model "$name" --test "$data/test_2016_flickr.en" "$data/test_2016_flickr.de" --quiet \
    >"$name.score" 2>>"$name.log" || { cat "$name.log" >&2; exit 1; }
  awk -v name="$name" -v seconds="$(echo "$end $begin" | awk '{printf "%.1f", $1 - $2}')" \
    '/^BLEU[0-9]* = / {bleu = $3} /^chrF[0-9]* = / {chrf = $3} END {printf "%-24s BLEU %6s  chrF %6s  %6s s\n", name, bleu, chrf, seconds}' "$name.score"
}

"$program" info | head -12
run first-half first --set "train.max_steps=$full"
run second-half second --set "train.max_steps=$full"
run all all --set "train.max_steps=$full"
run tuned second --init-from first-half "${tuning[@]}"
run tuned-encoder-frozen second --init-from first-half "${tuning[@]}" --set "optimizer.freeze=encoder.*"
run tuned-decoder-only second --init-from first-half "${tuning[@]}" --set "optimizer.freeze=encoder.*,shared.weight"
for name in tuned tuned-encoder-frozen tuned-decoder-only; do
  python3 - "$name" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(f"{sys.argv[1]}/metrics.jsonl", encoding="utf8")]
valid = [r for r in rows if r["kind"] == "valid"]
train = [r for r in rows if r["kind"] == "train"]
shown = lambda r: f"step {r['step']}: loss {r['loss']:.4f}, BLEU {r['bleu']:.2f}"
rate = sorted(r["target_tokens_per_s"] for r in train)[len(train) // 2]
environment = next(r for r in rows if r["kind"] == "run")["environment"]
print(f"{sys.argv[1]}: validation {shown(valid[0])}; {shown(valid[-1])}; median {rate:,.0f} target tokens/s; "
      f"{environment.get('trainable', environment['parameters'])} of {environment['parameters']} parameters train")
PY
done
