#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# expect_failure.sh REGEX COUNT command...: the command must fail within 10 s after printing COUNT lines with REGEX.
line=$1 count=$2
shift 2
start=$(date +%s)
output=$("$@" 2>&1)
code=$?
seconds=$(($(date +%s) - start))
found=$(printf '%s\n' "$output" | grep -cE "$line")
printf '%s\n' "$output"
echo "exit code $code after $seconds s, line found $found times"
[ "$code" -ne 0 ] && [ "$seconds" -lt 10 ] && [ "$found" -eq "$count" ]
