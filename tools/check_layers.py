#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the build cannot: see docs/guide/layers.md. Exits 1 and names each breach.

- includes are written from the layer, never relative ("../x.h"), and name a file that exists;
- third-party headers are not reachable from our headers, nor from .cu files;
- folders of one layer do not include each other in a cycle;
- no file is longer than 800 lines.
Prints the median and the 90th percentile of file lengths of each layer.
"""
import os
import re
import statistics
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SOURCE = os.path.join(ROOT, "src")
ENDINGS = (".h", ".cpp", ".cu", ".cuh")
LONGEST = 800
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)
THIRD_PARTY = re.compile(
    r"^(fmt/|CLI/|toml|nlohmann/|spdlog/|sentencepiece|zstd|zlib|xxhash|sqlite|cblas|mpi|nccl|gloo/|gtest|gmock|benchmark/"
    r"|cub/|thrust/|cooperative_groups|cuda/std)")
# Libraries that one file hides from all others (docs/adr/0008, 0041).
ONLY_IN = {"nlohmann/": "base/json_parse.cpp", "toml++/": "base/config_toml.cpp"}
MAY_HOLD_TESTS = re.compile(r"_(test|bench|fuzz)\.|/testing/")


def source_files():
    for folder, _, names in os.walk(SOURCE):
        for name in sorted(names):
            if name.endswith(ENDINGS):
                yield os.path.relpath(os.path.join(folder, name), SOURCE)


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf8") as file:
        return file.read()


def third_party_reach(path, includes, seen):
    """A third-party header that `path` reaches, with the way to it, or None."""
    for kind, name in includes.get(path, []):
        if THIRD_PARTY.match(name) and name not in includes:
            return f"{path} -> <{name}>"
        if kind == '"' and name in includes and name not in seen:
            seen.add(name)
            way = third_party_reach(name, includes, seen)
            if way:
                return f"{path} -> {way}"
    return None


def find_cycle(graph):
    """A list of nodes that include each other in a ring, or None."""
    state = {}

    def visit(node, trail):
        state[node] = "open"
        for after in sorted(graph.get(node, ())):
            if state.get(after) == "open":
                return trail[trail.index(after):] + [after] if after in trail else [node, after]
            if after not in state:
                ring = visit(after, trail + [after])
                if ring:
                    return ring
        state[node] = "done"
        return None

    for start in sorted(graph):
        if start not in state:
            ring = visit(start, [start])
            if ring:
                return ring
    return None


def main():
    breaches, lengths, includes = [], {}, {}
    for path in source_files():
        text = read(path)
        includes[path] = INCLUDE.findall(text)
        lines = text.count("\n")
        lengths.setdefault(path.split("/")[0], []).append(lines)
        if lines > LONGEST:
            breaches.append(f"{path}: {lines} lines, more than {LONGEST}; split it")
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
            breaches.append(f"{path}: the first line is not the SPDX line")

    folders = {}
    for path, list_of in includes.items():
        for kind, name in list_of:
            for library, owner in ONLY_IN.items():
                if name.startswith(library) and path != owner:
                    breaches.append(f"{path}: includes <{name}>; only {owner} does")
            if name.startswith("."):
                breaches.append(f'{path}: includes "{name}"; write the path from the layer')
            same_layer = kind == '"' and name.split("/")[0] == path.split("/")[0]
            if same_layer and name in includes and not MAY_HOLD_TESTS.search(path):
                here, there = os.path.dirname(path), os.path.dirname(name)
                if here != there:
                    folders.setdefault(here, set()).add(there)
        guarded = path.endswith((".h", ".cuh", ".cu")) and not MAY_HOLD_TESTS.search(path)
        way = third_party_reach(path, includes, set()) if guarded else None
        if way:
            breaches.append(f"{path}: reaches a third-party header: {way}")

    # Sub-folders may use the folder they lie in and the other way round: that is one unit of two parts.
    graph = {}
    for here, list_there in folders.items():
        for there in list_there:
            if not (there + "/").startswith(here + "/") and not (here + "/").startswith(there + "/"):
                graph.setdefault(here, set()).add(there)
    ring = find_cycle(graph)
    if ring:
        breaches.append("folders include each other: " + " -> ".join(ring))

    for layer in sorted(lengths):
        sizes = sorted(lengths[layer])
        print(f"{layer:9} {len(sizes):4} files {sum(sizes):6} lines, median {statistics.median(sizes):5.0f}, "
              f"90% below {sizes[int(0.9 * (len(sizes) - 1))]:4}, longest {sizes[-1]:4}")
    for breach in breaches:
        print("breach:", breach, file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
