#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rates, rooflines and memory of a trace recorded with shapes: `shapes_test.py PROGRAM`.

The trace is of PyTorch 2.11 on an H200: three transformer blocks in bf16 (flash, efficient and cuDNN attention), a
convolution net in fp32, single products, and a list that keeps 32 MiB a step. Operations are counted here once more, from
the shapes.
"""
import collections
import gzip
import json
import math
import os
import subprocess
import sys
import unittest

TRACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "transformer.json.gz")
PROGRAM = None


def operations(event):
    """Multiplications and additions of a matrix product, or None for other operators."""
    dims = event["args"]["Input Dims"]
    if event["name"] not in ("aten::mm", "aten::bmm", "aten::addmm"):
        return None
    left, right = dims[1:3] if event["name"] == "aten::addmm" else dims[:2]
    return 2 * math.prod(left) * right[-1]


class Shapes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with gzip.open(TRACE, "rt") as file:
            cls.events = json.load(file)["traceEvents"]
        told = subprocess.run([PROGRAM, "doctor", TRACE, "--format", "json"], check=True, capture_output=True)
        cls.told = json.loads(told.stdout)
        cls.device = cls.told["devices"][0]
        cls.kernels = {k["name"]: k for k in cls.device["kernels"]}

    def test_products_have_the_rate_of_their_shapes(self):
        operators = {e["args"]["External id"]: e for e in self.events if e.get("cat") == "cpu_op"}
        sums = collections.defaultdict(lambda: [0, 0.0])
        for event in self.events:
            if event.get("cat") != "kernel":
                continue
            work = operations(operators[event["args"]["External id"]])
            sums[event["name"]][0] += math.nan if work is None else work
            sums[event["name"]][1] += event["dur"]
        checked = 0
        for name, (work, us) in sums.items():
            kernel = self.kernels[name]
            if math.isnan(work) or kernel["leaf"] not in ("tensor", "matrix"):
                continue
            checked += 1
            self.assertAlmostEqual(kernel["tflops"] / (work / us * 1e-6), 1, delta=0.03, msg=name)
        self.assertGreaterEqual(checked, 5)

    def test_nothing_is_above_the_roof_of_arithmetic(self):
        shares = [k["roofline_share"] for k in self.kernels.values() if k["bound"] == "arithmetic"]
        self.assertGreater(len(shares), 8)
        self.assertLess(max(shares), 1.0)
        self.assertGreater(max(shares), 0.6)

    def test_attention_and_convolution_are_known(self):
        for part in ("flash_fwd", "flash_bwd", "fmha_cutlassF", "fmha_cutlassB", "sdpa_sm90_flash_fprop",
                     "sdpa_sm90_flash_bprop", "fprop_implicit", "dgrad", "wgrad"):
            found = [k for name, k in self.kernels.items() if part in name and k["tflops"]]
            self.assertTrue(found, part)
            self.assertTrue(all(0.01 < k["roofline_share"] < 1 for k in found), part)

    def test_most_of_the_time_has_a_rate(self):
        known = sum(k["with_work_ns"] for k in self.kernels.values())
        self.assertGreater(known / sum(k["total_ns"] for k in self.kernels.values()), 0.85)

    def test_copies_come_near_the_link(self):
        copy, = [c for c in self.device["copies"] if c["kind"] == "host_to_device" and c["bytes"] > 1e8]
        rate = copy["bytes"] / copy["total_ns"]
        self.assertTrue(0.5 < rate / copy["link_gb_per_s"] < 1, rate)

    def test_memory_grows(self):
        memory = self.device["memory"]
        self.assertGreater(memory["allocated_most"], 2e9)
        self.assertGreaterEqual(memory["reserved_most"], memory["allocated_most"])
        self.assertGreater(memory["growth"], 1.05)
        self.assertIn("device 0 grew", self.told["memory_drift"])

    def test_the_page_has_the_pictures(self):
        page = subprocess.run([PROGRAM, "doctor", TRACE, "--format", "html"], check=True, capture_output=True).stdout
        for picture in (b"roofline", b"Device 0, memory over time", b"step times"):
            self.assertIn(b'aria-label="' + picture, page)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
