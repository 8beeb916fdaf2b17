# SPDX-License-Identifier: Apache-2.0
"""The judgement of blind programs on made-up readings, and the form of the programs: no GPU, no PyTorch."""
import ast
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

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

    def test_a_healthy_run_that_was_not_done_is_said_and_is_no_success(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            said = {"program": "p", "cause": "sync", "step_ms": 10.0, "planted_ms": 5.0}
            row = {"program": "p", "errors": {}, "planted": said, "alone": {"planted": [said], "fixed": [{"step_ms": 5.0}]}}
            (folder / "p.planted.json").write_text(json.dumps(report("sync_bound", 5.0, [("syncs", 2.05)])))
            (folder / "p.healthy.json").write_text(json.dumps(report("host_bound", 0, [("host_work", 52.0)])))  # of its start
            judged = first_reading.judge_one(folder, row)
            self.assertNotIn("healthy", judged)
            self.assertTrue(judged["right"])
            (folder / "p.row.json").write_text(json.dumps(row))
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(first_reading.judge(types.SimpleNamespace(folder=name, jsonl=None)), 1)
            self.assertIn("MISS most promised to a healthy one", out.getvalue())

    def test_the_line_is_the_function_that_the_program_names(self):
        at = {"function": "Tree.change", "file": "a.py", "line": 1, "text": "self.sums[node]"}
        lines = [{"share": 0.5, "at": at, "remark": ""}, {"share": 0.4, "at": dict(at, function="step"), "remark": ""}]
        one = {"verdict": {}, "devices": [{"host_lines": {"lines": lines, "workers": []}}]}
        self.assertEqual(first_reading.line_of(one), ("change", "50% self.sums[node], Tree.change"))
        self.assertEqual(first_reading.planted_functions("Cause: x.\nLine: a.py:draw (it) and change (in it).\n"), ["draw", "change"])
        self.assertEqual(first_reading.planted_functions("Line: a.py:step, its call of x.step()"), ["step"])
        self.assertEqual(first_reading.planted_functions("Line: a.py:Tree.change (in it)\n"), ["change"])
        self.assertEqual(first_reading.planted_functions("Line: a.py:draw. It is slow.\n"), ["draw"])
        lines[0]["remark"] = "it waits for the loader's workers"
        one["devices"][0]["host_lines"]["workers"] = [{"share": 0.3, "at": dict(at, function="make")}]
        self.assertEqual(first_reading.line_of(one)[0], "make")
        self.assertEqual(first_reading.line_of({"verdict": {}, "devices": [{"host_lines": None}]}), ("", ""))

    def test_what_was_not_read_is_no_success(self):
        with tempfile.TemporaryDirectory() as name, self.assertRaises(SystemExit):
            first_reading.judge(types.SimpleNamespace(folder=name, jsonl=None))


class Reading(unittest.TestCase):
    STILL = "import blind, time; blind.take_gpu(); print('has it', flush=True); time.sleep(60)"

    def test_one_that_stands_still_gives_the_gpu_back(self):
        with tempfile.TemporaryDirectory() as name:
            took = {"PATH": os.environ["PATH"], "BLIND_GPU_LOCK": f"{name}/gpu", "BLIND_GPU_SECONDS": "1"}
            first = subprocess.run([sys.executable, "-c", self.STILL], cwd=first_reading.HERE, env=took,
                                   capture_output=True, text=True, timeout=30)
            self.assertEqual((first.returncode, first.stdout), (-signal.SIGALRM, "has it\n"))
            then = "import blind, time; blind.take_gpu(); blind.give_gpu(); time.sleep(1.5); print('lives')"
            second = subprocess.run([sys.executable, "-c", then], cwd=first_reading.HERE, env=took,
                                    capture_output=True, text=True, timeout=30)
            self.assertEqual((second.returncode, second.stdout), (0, "lives\n"))

    def test_nobody_prepares_beside_one_that_measures(self):
        def start(text):
            line = f"import blind, time; blind.{text}"
            return subprocess.Popen([sys.executable, "-c", line], cwd=first_reading.HERE, env=shares,
                                    stdout=subprocess.PIPE, text=True)

        both = "share_gpu(); print('in', flush=True); time.sleep(1); blind.take_gpu(); t = time.monotonic(); " \
               "time.sleep(0.5); print(t, time.monotonic())"
        late = "share_gpu(); print(time.monotonic())"
        with tempfile.TemporaryDirectory() as name:
            shares = {"PATH": os.environ["PATH"], "BLIND_GPU_LOCK": f"{name}/gpu"}
            first, second = start(both), start(both)
            for one in (first, second):  # they prepare at once
                self.assertEqual(one.stdout.readline(), "in\n")
            time.sleep(1.25)  # one of them measures
            third = start(late)
            spans = sorted(tuple(map(float, one.communicate(timeout=30)[0].split())) for one in (first, second))
            began = float(third.communicate(timeout=30)[0])
        self.assertGreaterEqual(spans[1][0], spans[0][1], "two measured at once")
        for measures, done in spans:
            self.assertFalse(measures < began < done, "one prepared beside one that measured")

    def test_it_is_said_that_one_stood_still(self):
        for ended in ("kill -ALRM $$", "exit 142"):
            self.assertEqual(first_reading.run(["sh", "-c", ended], None, 1, 7),
                             (None, "it stood still: its steps were not done 7 s after it had the GPU"))

    def test_what_was_measured_outlives_a_reading_that_is_stopped(self):
        said = {"program": "p", "cause": "sync", "step_ms": 10.0}
        with tempfile.TemporaryDirectory() as name:
            given = types.SimpleNamespace(folder=name, turns=1, scale=1.0, gpus=1, hold=5, library=None, keep=False, doctor="d", open=None)
            with unittest.mock.patch.object(first_reading, "run", side_effect=[(said, ""), (None, "no"), KeyboardInterrupt]):
                with self.assertRaises(KeyboardInterrupt):
                    first_reading.read_one(first_reading.programs()[0], 0, given)
            row = json.loads(next(pathlib.Path(name).glob("*.row.json")).read_text())
        self.assertEqual((row["alone"]["planted"], row["errors"]), ([said], {"fixed": "no"}))


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

    def test_open_programs_say_where_they_are_and_what_is_edited(self):
        names = first_reading.open_programs()
        self.assertTrue(names)
        self.assertFalse(set(names) & set(first_reading.programs()))
        for name in names:
            case = first_reading.case_of(name)
            self.assertTrue(case["__doc__"], name)
            self.assertIn(case["CAUSE"], first_reading.CAUSES, name)
            self.assertRegex(case["REPOSITORY"], r"^[\w.-]+/[\w.-]+$", name)
            self.assertRegex(case["COMMIT"], r"^[0-9a-f]{40}$", name)
            # What has a cause has a line and a repair; what has none has neither.
            self.assertEqual(bool(case["LINE"]), case["CAUSE"] != "none", name)
            self.assertEqual(bool(case["REPAIR"]), case["CAUSE"] != "none", name)
            self.assertLessEqual(len(case.get("LINES", [])), 3 if case["LINE"] else 0, name)
            for line in case.get("LINES", []):
                self.assertRegex(line, r"^[^:]+\.py:[1-9]\d*$", name)
            others = case.get("OTHER_REPAIRS", {})
            self.assertLessEqual(set(others), set(first_reading.CAUSES) - {"none", case["CAUSE"]}, name)
            for edits in (case["EDITS"], case["REPAIR"], *others.values(), *case.get("REMEDIES", {}).values()):
                for file, first, last, text in edits:
                    self.assertTrue(1 <= first <= last + 1 and isinstance(text, str), f"{name}: {file}:{first}")

    def test_an_open_program_is_started_with_its_share_of_steps(self):
        name = first_reading.open_programs()[0]
        line = first_reading.command(name, "fixed", types.SimpleNamespace(open="/checkouts", scale=2.0))
        self.assertEqual(line[2:6], [name, "repaired", "--repositories", "/checkouts"])
        self.assertEqual(int(line[-1]), max(first_reading.FEWEST_STEPS, 2 * first_reading.case_of(name).get("STEPS", 300)))

    def test_a_line_of_an_open_program_is_right_within_two(self):
        place = {"file": "a/train.py", "line": 12, "text": "model(x)", "function": "step"}
        named = {"at": place, "called_from": None, "with_backward_pass": 0.5, "function_share": 0.1}
        report = {"verdict": {"line": named}}
        self.assertEqual(first_reading.open_line(report, "b/train.py:14", []), ("50% a/train.py:12 model(x), step", True))
        self.assertFalse(first_reading.open_line(report, "b/train.py:15", [])[1])
        self.assertFalse(first_reading.open_line(report, "b/other.py:12", [])[1])
        named["called_from"] = {"file": "loop.py", "line": 3}
        self.assertTrue(first_reading.open_line(report, "loop.py:3", [])[1])
        self.assertEqual(first_reading.open_line({"verdict": {"line": None}}, "b/train.py:14", []), ("", False))

    def test_lines_are_those_of_the_edited_file(self):
        edits = [("train.py", 3, 5, "one\n"), ("train.py", 8, 7, "new\nlines"), ("train.py", 9, 9, ""), ("train.py", 20, 25, ""),
                 ("other.py", 1, 9, "")]
        for published, edited in ((2, 2), (6, 4), (8, 8), (10, 9)):
            self.assertEqual(first_reading.edited_line("train.py", published, edits), edited)

    def test_another_cause_is_judged_by_the_fixes_that_speak_of_it(self):
        fixes = [{"id": "syncs", "speedup_at_most": 1.5, "is_ceiling": False, "range": [1.1, 2.0]},
                 {"id": "graphs", "speedup_at_most": 3.0, "is_ceiling": True}]
        self.assertEqual(first_reading.judge_other({"fixes": fixes}, "sync", [4.0, 6.0], 2.5),
                         {"cause": "sync", "gained": 2.0, "fix": "syncs", "promised": 1.5, "ceiling": False, "range": [1.1, 2.0]})
        self.assertEqual(first_reading.judge_other({"fixes": fixes}, "copy", [5.0], 2.5)["promised"], 1.0)


if __name__ == "__main__":
    unittest.main()
