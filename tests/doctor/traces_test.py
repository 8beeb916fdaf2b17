#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The doctor on traces recorded from the programs beside this file, on an H200 with PyTorch 2.11. First argument: the
program saturate. What a trace must and must not say lies in traces/labels.json; `cause_ms` is what the program measured
by itself in that run."""
import gzip
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trim  # noqa: E402
import truth  # noqa: E402

PROGRAM = sys.argv.pop(1)
TRACES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "traces")


def labels():
    with open(os.path.join(TRACES, "labels.json"), encoding="utf-8") as file:
        return json.load(file)


class Recorded(unittest.TestCase):
    def test_every_trace_is_told_as_labelled(self):
        for name, label in labels().items():
            with self.subTest(name):
                told = truth.diagnose(PROGRAM, os.path.join(TRACES, name + ".json.gz"))
                self.assertEqual(told["verdict"]["id"], label["expect"])
                promised = [f["id"] for f in told["fixes"]]
                self.assertFalse(set(promised) & set(label["must_not"]), promised)
                if "first" in label:
                    self.assertEqual(promised[0], label["first"])
                if "cause_ms" in label:
                    off = told["verdict"]["cause_ns"] / 1e6 / label["cause_ms"] - 1
                    self.assertLess(abs(off), truth.CAUSE_MS, off)
                self.assertEqual(told["steps"]["drift"] > 1.1, label.get("drift", False))
                self.assertLess(told["replay"]["error"], 0.02)

    def test_every_trace_has_a_label(self):
        traces = {f[:-len(".json.gz")] for f in os.listdir(TRACES) if f.endswith(".json.gz")}
        self.assertEqual(traces, set(labels()))

    def test_a_trace_without_recording_is_scaled(self):
        path = os.path.join(TRACES, "tiny_batch.planted.json.gz")
        naive, scaled = truth.diagnose(PROGRAM, path), truth.diagnose(PROGRAM, path, 2.2493)
        self.assertEqual(naive["replay"]["dispatch_scale"], 1)
        self.assertLess(scaled["replay"]["dispatch_scale"], 0.7)
        # Measured: 2.2493 ms to 0.1874 ms with torch.cuda.graph.
        self.assertAlmostEqual(scaled["fixes"][0]["speedup_at_most"] / (2.2493 / 0.1874), 1, delta=0.15)

    def test_trimming_keeps_the_diagnosis(self):
        path = os.path.join(TRACES, "gpu_bound.planted.json.gz")
        with gzip.open(path, "rt") as file:
            trace = json.load(file)
        with tempfile.TemporaryDirectory() as folder:
            short = os.path.join(folder, "short.json")
            with open(short, "w", encoding="utf-8") as out:
                json.dump(trim.trim(trace, 0.5), out)
            told, whole = truth.diagnose(PROGRAM, short), truth.diagnose(PROGRAM, path)
        self.assertEqual(told["verdict"]["id"], whole["verdict"]["id"])
        self.assertLess(told["steps"]["count"], whole["steps"]["count"])


class Watched(unittest.TestCase):
    """Captures of `truth.py watch` on an H200, of one launch: each program's own, and the launcher's looks at threads."""

    def test_every_capture_names_its_cause(self):
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(os.path.join(TRACES, "watched.tar.xz")) as archive:
                archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
            with open(os.path.join(folder, "measured.jsonl"), encoding="utf-8") as file:
                results = [json.loads(line) for line in file]
            self.assertEqual(len(results), 9)
            for result in results:
                with self.subTest(result["program"]):
                    own = os.path.join(folder, result["trace"])
                    os.mkdir(own)
                    os.rename(own + ".sat", os.path.join(own, "program.sat"))
                    os.symlink("../host.sat", os.path.join(own, "host.sat"))
                    told = truth.diagnose(PROGRAM, own)
                    row, = truth.judge_causes([result], [told])
                    self.assertTrue(row["right"], row)
                    # growing_step was warmed up by short steps that are in its capture: its mean is no measure.
                    if not result["drift"]:
                        self.assertLess(abs(row.get("off", 0)), truth.CAUSE_MS, row)


class Judging(unittest.TestCase):
    """The tables of truth.py, on made-up results: a wrong doctor must not pass."""

    RESULT = {"program": "p", "fix": None, "cause": "loader", "verdicts": ["input_bound"], "drift": False,
              "step_ms": 10.0, "planted_ms": 8.0, "batches": 1}
    TOLD = {"verdict": {"id": "input_bound", "cause_ns": 8.1e6}, "steps": {"drift": 1.0},
            "fixes": [{"id": "loader", "speedup_at_most": 5.0, "is_ceiling": True}], "not_the_cause": []}

    def test_right_and_wrong_causes(self):
        wrong = dict(self.TOLD, verdict={"id": "copy_bound", "cause_ns": 4e6})
        right, other = truth.judge_causes([self.RESULT] * 2, [self.TOLD, wrong])
        self.assertTrue(right["right"])
        self.assertAlmostEqual(right["off"], 0.0125)
        self.assertFalse(other["right"])
        self.assertAlmostEqual(other["off"], -0.5)

    def test_healthy_programs_get_no_promise(self):
        healthy = dict(self.RESULT, cause=None, verdicts=["gpu_bound"], planted_ms=0.0)
        told = dict(self.TOLD, verdict={"id": "gpu_bound", "cause_ns": 1e7})
        self.assertFalse(truth.judge_causes([healthy], [told])[0]["right"])
        told = dict(told, fixes=[{"id": "loader", "speedup_at_most": 1.02, "is_ceiling": True}])
        self.assertTrue(truth.judge_causes([healthy], [told])[0]["right"])

    def test_an_estimate_is_no_ceiling(self):
        plain = [self.RESULT, dict(self.RESULT, fix="loader", step_ms=1.0)]
        told = dict(self.TOLD, fixes=[{"id": "loader", "speedup_at_most": 5.0, "is_ceiling": False}])
        self.assertFalse(truth.judge_fixes(plain, [self.RESULT], [told])[0]["ceiling"])
        self.assertTrue(truth.judge_fixes(plain, [self.RESULT], [self.TOLD])[0]["ceiling"])

    def test_gains_are_compared(self):
        plain = [self.RESULT, dict(self.RESULT, fix="loader", step_ms=2.5)]
        row, = truth.judge_fixes(plain, [self.RESULT], [self.TOLD])
        self.assertEqual((row["measured"], row["predicted"], row["error"]), (4.0, 5.0, 0.25))


if __name__ == "__main__":
    unittest.main()
