#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests that need a GPU: tests/gpu.sh [BUILD_FOLDER]
# Test programs run as they are (those of BUILD_FOLDER/test), whole trainings on one GPU and, where there are
# several and torchrun is here, on all of them; the Python package where it is built for this python3 and that has
# PyTorch, with attention's errors at the corners of the study's grid. `./saturate.sh test` ends with this on a machine
# with a GPU.
set -euo pipefail
build=${1:-build} here="$(dirname "${BASH_SOURCE[0]}")"
for test in "$build"/test/saturate_{kernels,ops,model,train}_test; do
  [[ -x $test ]] && "$test" --gtest_brief=1
done
if PYTHONPATH="$build/python" python3 -c 'import pytest, torch, saturate._core' 2>/dev/null; then
  PYTHONPATH="$build/python" python3 -m pytest -q -p no:cacheprovider "$here/../python/tests"
  PYTHONPATH="$build/python" python3 "$here/attention_grid.py" --quick >/dev/null
fi
python3 "$here/cli/lab_test.py" "$build/bin/saturate" --gpu
launch=() gpus="$(nvidia-smi --list-gpus | wc -l)"
if ((gpus > 1)) && command -v torchrun >/dev/null; then
  launch=(--ranks "$gpus" --launch "torchrun --standalone --nproc-per-node {ranks} --no-python")
fi
python3 "$here/train/train_test.py" "$build/bin/saturate" --device cuda "${launch[@]}"
python3 "$here/train/finetune_test.py" "$build/bin/saturate" --device cuda "${launch[@]}"
python3 "$here/cli/top_test.py" "$build/bin/saturate" "$build/test/libfake_nvml.so"
