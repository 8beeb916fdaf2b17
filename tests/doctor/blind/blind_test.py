# SPDX-License-Identifier: Apache-2.0
"""The judgement of blind programs on made-up readings, and the form of the programs: no GPU, no PyTorch."""
import ast
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import first_reading


def report(verdict, cause_ms, fixes):
    return {"verdict": {"id": verdict, "cause_ns": 1e6 * cause_ms}, "steps": {"found": True},
            "fixes": [{"id": i, "speedup_at_most": s, "is_ceiling": True} for i, s in fixes]}


class Judgement(unittest.TestCase):
    def judged(self, gained=2.0, verdict="sync_bound", promised=2.05, cause_ms=5.0, healthy=1.01):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            said = {"program": "p", "cause": "sync", "step_ms": 10.0, "planted_ms": 5.0}
            row = {"program": "p", "errors": {}, "planted": said, "healthy": said,
                   "alone": {"planted": [said, said], "fixed": [{"step_ms": 10.0 / gained}]}}
            (folder / "p.row.json").write_text(json.dumps(row))
            (folder / "p.planted.json").write_text(json.dumps(report(verdict, cause_ms, [("syncs", promised)])))
            (folder / "p.healthy.json").write_text(json.dumps(report("gpu_bound", 0, [("graphs", healthy)])))
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = first_reading.judge(types.SimpleNamespace(folder=name, jsonl=None))
            return code, [line for line in out.getvalue().splitlines() if line.startswith("MISS")]

    def test_a_right_reading_passes(self):
        self.assertEqual(self.judged(), (0, []))

    def test_each_limit_can_be_missed(self):
        for key, value, says in (("verdict", "launch_bound", "cause first"), ("gained", 2.2, "worst above its ceiling"),
                                 ("promised", 2.5, "mean error of gains"), ("cause_ms", 5.4, "worst cause ms"),
                                 ("healthy", 1.05, "most promised to a healthy one")):
            code, missed = self.judged(**{key: value})
            self.assertEqual(code, 1)
            self.assertTrue(any(says in line for line in missed), (key, missed))

    def test_what_was_not_read_is_no_success(self):
        with tempfile.TemporaryDirectory() as name, self.assertRaises(SystemExit):
            first_reading.judge(types.SimpleNamespace(folder=name, jsonl=None))


class Form(unittest.TestCase):
    def test_programs_say_where_they_come_from_and_what_they_plant(self):
        names = first_reading.programs()
        self.assertTrue(names)
        for name in names:
            tree = ast.parse((first_reading.HERE / f"{name}.py").read_text("utf-8"))
            says = ast.get_docstring(tree) or ""
            for word in ("Cause:", "Line:", "Remedy:"):
                self.assertIn(word, says, name)
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            loops = [node for node in calls if getattr(node.func, "attr", "") == "Loop"]
            self.assertEqual(len(loops), 1, name)
            self.assertEqual(loops[0].args[0].value, name)
            self.assertIn(loops[0].args[1].value, first_reading.CAUSES, name)


if __name__ == "__main__":
    unittest.main()
