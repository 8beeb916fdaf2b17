#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`saturate lab` as a user meets it. First argument: the program. With `--gpu` as the second also what needs one."""
import json
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)
GPU = "--gpu" in sys.argv
if GPU:
    sys.argv.remove("--gpu")


def lab(*arguments, timeout=120):
    done = subprocess.run([PROGRAM, "lab", *arguments], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def names():
    return [line.split()[0] for line in lab("list")[1].splitlines() if line and not line.startswith(" ")]


class Arguments(unittest.TestCase):
    def test_list_names_each_program_with_its_remedy_or_none(self):
        code, out, _ = lab("list")
        self.assertEqual(code, 0)
        self.assertEqual(len(names()), 11)
        self.assertEqual(out.count("remedy: ") + out.count("nothing is wrong"), 11)
        self.assertIn("verdict launch_bound", out)

    def test_mistakes_are_named(self):
        for arguments, says in ((("run", "sync_each_stp"), "did you mean 'sync_each_step'"),
                                (("run",), "program is required"),
                                ((), "subcommand is required"),
                                (("run", "gpu_bound", "--remedy"), "it has no remedy"),
                                (("run", "host_work", "--steps", "0"), "0 is no whole number from 1 to"),
                                (("run", "host_work", "--device", "gpu7"), "gpu7")):
            with self.subTest(arguments):
                code, out, error = lab(*arguments)
                self.assertIn(code, (1, 2))
                self.assertIn(says, error)
                self.assertEqual(out, "")

    @unittest.skipIf(GPU, "with a GPU they run")
    def test_without_a_gpu_it_says_what_is_missing(self):
        for arguments in (("run", "host_work"), ("compare",)):
            code, _, error = lab(*arguments)
            self.assertNotEqual(code, 0)
            self.assertRegex(error, "no GPU|need a GPU")


@unittest.skipUnless(GPU, "needs a GPU")
class OnAGpu(unittest.TestCase):
    def test_each_program_measures_itself_and_its_remedy_helps(self):
        for name in names():
            with self.subTest(name):
                code, out, error = lab("run", name, "--json", "--steps", "50")
                self.assertEqual(code, 0, error)
                plain = json.loads(out)
                self.assertLess(plain["planted_ms"], plain["step_ms"])
                if name in ("memory_bound", "gpu_bound"):
                    self.assertEqual(plain["planted_ms"], 0)
                    continue
                self.assertGreater(plain["planted_ms"], 0.1 * plain["step_ms"])
                code, out, error = lab("run", name, "--json", "--steps", "50", "--remedy")
                self.assertEqual(code, 0, error)
                self.assertLess(json.loads(out)["step_ms"], 0.95 * plain["step_ms"])

    def test_compare_puts_four_variants_in_one_table(self):
        code, out, error = lab("compare", "--json", "--steps", "200")
        self.assertEqual(code, 0, error)
        rows = json.loads(out)
        self.assertEqual(len(rows), 4)
        self.assertLess(rows[1]["cycle_ms"], rows[0]["cycle_ms"])
        for row in rows:
            self.assertGreater(row["device_busy"], 0)
            self.assertLess(row["device_busy"], 1.05)


if __name__ == "__main__":
    unittest.main()
