#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every row in bench/results says which commit was measured: `saturate bench` and the scripts in bench/
write it; `unknown` where nobody knows any more. In a checkout with history each commit must be part of it.
Exits 1 and names each row that does not. With --stamp it reads rows and writes them with the commit of this checkout."""
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def git(*arguments, given=None):
    """What git prints, or None where there is no git or no history."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], input=given, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def stamp():
    head = (git("rev-parse", "--short=9", "HEAD") or "unknown").strip()
    if head != "unknown" and git("status", "--porcelain", "--untracked-files=no"):
        head += "+changes"
    for line in sys.stdin:
        row = line.rstrip()
        if row.endswith("}") and '"commit"' not in row:
            row = f'{row[:-1]},"commit":"{head}"}}'
        print(row, flush=True)


def main():
    if sys.argv[1:] == ["--stamp"]:
        return stamp()
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "bench", "results")
    faults, rows, by_commit = [], 0, {}
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        with open(path, encoding="utf8") as file:
            for number, line in enumerate(file, 1):
                where = f"{os.path.basename(path)}:{number}"
                rows += 1
                try:
                    commit = json.loads(line).get("commit")
                except (ValueError, AttributeError):
                    faults.append(f"{where}: not an object in JSON")
                    continue
                if commit != "unknown" and not re.fullmatch("[0-9a-f]{7,40}", str(commit)):
                    faults.append(f"{where}: commit is {commit}; it must be that of a clean checkout, or unknown")
                else:
                    by_commit.setdefault(commit, where)
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow is not None and shallow.strip() == "false":
        names = sorted(set(by_commit) - {"unknown"})
        answer = git("cat-file", "--batch-check=%(objecttype)", given="".join(f"{name}\n" for name in names))
        for name, kind in zip(names, (answer or "").splitlines()):
            if kind != "commit":
                faults.append(f"{by_commit[name]}: no commit {name} in this repository")
    for fault in faults:
        print(fault)
    print(f"{rows} rows of {len(by_commit)} commits, {len(faults)} faults")
    return 1 if faults or rows == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
