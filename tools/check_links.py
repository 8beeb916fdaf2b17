#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a relative link of a Markdown file points nowhere."""
import os
import re
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def markdown_files():
    for name in os.listdir(ROOT):
        if name.endswith(".md"):
            yield os.path.join(ROOT, name)
    for top in ["docs", "src", "tests", "examples", "bench"]:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            yield from (os.path.join(folder, name) for name in names if name.endswith(".md"))


def main():
    broken = 0
    for path in markdown_files():
        with open(path, encoding="utf8") as file:
            for target in LINK.findall(file.read()):
                if "://" in target or os.path.exists(os.path.join(os.path.dirname(path), target)):
                    continue
                print(f"{os.path.relpath(path, ROOT)}: no such file: {target}", file=sys.stderr)
                broken += 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
