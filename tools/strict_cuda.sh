#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiler launcher for CUDA: strict_cuda.sh [ccache] nvcc ... Fails when ptxas spills registers or serialises wgmma
# (C75xx, which it only mentions) in the Hopper kernels: both cost a large part of their speed. Other kernels pass.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" 2>"$log"
status=$?
cat "$log" >&2
case "$*" in
  */gemm/wgmma/* | */gemm/grouped/* | */attention/hopper/forward* | */attention/wide/forward_[dw]* | */attention/cute/*)
    if grep -Eq 'C75[0-9][0-9]|[Rr]egisters are spilled' "$log"; then
      echo "strict_cuda.sh: spilled registers or serialised wgmma in a Hopper kernel are errors" >&2
      exit 1
    fi
    ;;
esac
exit "$status"
