#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How long `saturate translate` takes from its start: for one line, for a whole text, until each line appears, and for a
# person who waits for each line.
#   bench/translate_times.sh PROGRAM MODEL TEXT [DEVICE] [PRECISION]
# MODEL is a folder that translates, TEXT source lines (Multi30k's train.en has 29,000). The parts of the start are those
# of SATURATE_VERBOSE=load. Needs python3.
set -euo pipefail
program=$(realpath "$1") model=$(realpath "$2") text=$(realpath "$3") device=${4:-auto} precision=${5:-auto}
runs=${RUNS:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arguments=(--model "$model" --device "$device" --precision "$precision")
head -n 1 "$text" >"$work/one"

timed() {  # timed LABEL INPUT OPTIONS...: whole process in milliseconds, then the program's own account
  local label=$1 input=$2 begin end
  shift 2
  begin=$(date +%s%N)
  SATURATE_VERBOSE=load "$program" translate "${arguments[@]}" "$@" <"$input" >"$work/out" 2>"$work/log"
  end=$(date +%s%N)
  echo "$label: $(((end - begin) / 1000000)) ms"
  if [[ -n ${VERBOSE:-} ]]; then grep -E 'load:|lines in' "$work/log" | sed 's/^/    /'; fi
}

"$program" info | head -12
for beam in 4 1; do
  for ((run = 1; run <= runs; ++run)); do timed "one line, beam $beam" "$work/one" --beam "$beam"; done
  for ((run = 1; run <= 3; ++run)); do timed "$(wc -l <"$text") lines, beam $beam" "$text" --beam "$beam"; done
done
VERBOSE=1 timed "parts of the start, one line, beam 4" "$work/one" --beam 4

python3 - "$program" "$text" "${arguments[@]}" <<'PY'
import select, subprocess, sys, time

command = [sys.argv[1], "translate", *sys.argv[3:], "--beam", "4", "--quiet"]
begin = time.time()
with open(sys.argv[2], "rb") as text:
    process = subprocess.Popen(command, stdin=text, stdout=subprocess.PIPE)
    marks = {1, 100, 1000, 10000, 20000}
    for number, _ in enumerate(process.stdout, 1):
        if number in marks:
            print(f"line {number} at {time.time() - begin:.3f} s")
    print(f"end at {time.time() - begin:.3f} s")

lines = open(sys.argv[2], "rb").read().splitlines(True)[:20]
process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
waits = []
for line in lines:
    sent = time.time()
    process.stdin.write(line)
    process.stdin.flush()
    if not select.select([process.stdout], [], [], 20)[0]:
        sys.exit("no line within 20 s: this program reads its input to the end first")
    process.stdout.readline()
    waits.append(1e3 * (time.time() - sent))
process.stdin.close()
process.wait()
print("each line after the one before was read, ms:", " ".join(f"{w:.1f}" for w in waits))
PY
