#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every test is labelled fast, slow or gpu, and with its layer or group: check_labels.py CTEST BUILD_FOLDER.
The labels are set in cmake/test_labels.cmake; every pattern for slow cases there must still match one. Exits 1 otherwise."""
import json
import os
import re
import subprocess
import sys


def main():
    ctest, build = sys.argv[1:]
    shown = subprocess.run([ctest, "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
    tests = {}
    for test in json.loads(shown.stdout)["tests"]:
        labels = [p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"]
        tests[test["name"]] = labels[0] if labels else []
    not_built = [name for name in tests if name.endswith("_NOT_BUILT")]  # what ctest puts in the place of a program's cases
    for name in not_built:
        del tests[name]
    faults = [f"{name} is labelled {labels or 'not at all'}: it needs fast, slow or gpu, and a group"
              for name, labels in tests.items() if len(set(labels) & {"fast", "slow", "gpu"}) != 1 or len(labels) != 2]
    rules = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cmake", "test_labels.cmake")
    with open(rules, encoding="utf8") as file:
        patterns = re.search(r"set\(SATURATE_SLOW_TESTS\n(.*?)\n\)", file.read(), re.S).group(1)
    # Programs (their names are lower case) are not built everywhere; the cases of GoogleTest programs are.
    for pattern in re.findall(r'"(.*?)"', patterns):
        pattern = pattern.replace("\\\\", "\\")
        if re.search("[A-Z]", pattern) and not not_built and not any(re.search(pattern, name) for name in tests):
            faults.append(f"no test matches {pattern}")
    for fault in faults:
        print(fault)
    slow = sum("slow" in labels for labels in tests.values())
    print(f"{len(tests)} tests, {slow} of them slow, {len(faults)} faults")
    return 1 if faults or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
