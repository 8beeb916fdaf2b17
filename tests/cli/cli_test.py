# SPDX-License-Identifier: Apache-2.0
"""The program as a user meets it: usage: cli_test.py PATH_OF_SATURATE"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]


def saturate(*args, stdin=""):
    """Runs the program; returns (exit code, standard output, standard error)."""
    done = subprocess.run([PROGRAM, *args], input=stdin, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


class Usage(unittest.TestCase):
    def refused(self, *args, says):
        code, out, err = saturate(*args)
        self.assertEqual(code, 2, (args, out, err))
        self.assertEqual(out, "")
        self.assertTrue(err.startswith("saturate: "), err)
        self.assertEqual(err.count("\n"), 1, err)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, err)

    def test_words_in_place_of_whole_numbers_are_refused_as_such(self):
        for value in ["four", "2.5", "0", "65"]:
            self.refused("translate", "--model", "x", "--beam", value,
                         says=f"--beam: {value} is no whole number from 1 to 64 (saturate translate --help explains)")
        tried = 0
        for command in "translate generate serve eval quantize shortlist panels bench tune plan quickstart-data doctor".split():
            _, text, _ = saturate(command, "--help")
            for flag in re.findall(r"^  (?:-\w,)?(--[\w-]+)\S* U?INT", text, re.MULTILINE):
                tried += 1
                self.refused(command, flag, "four", says=[f"{flag}: four is no whole number from ", command])
        self.assertGreater(tried, 30)

    def test_a_device_is_looked_at_before_the_model(self):
        for command in ["translate", "generate", "serve", "eval"]:
            for value in ["gpu", "cuda:", "cuda:x", "CPU", ""]:
                self.refused(command, "--model", "no-such-model", "--device", value,
                             says=f"--device: {value} is no device; give auto, cpu, cuda or cuda:N")
        code, _, err = saturate("translate", "--model", "no-such-model", "--device", "cuda:0")
        self.assertNotIn("--device", err)

    def test_help_of_each_command_has_examples(self):
        for command in ["train", "translate", "generate", "serve", "eval", "info", "bench", "quickstart-data", "panels"]:
            code, out, _ = saturate(command, "--help")
            self.assertEqual(code, 0)
            self.assertRegex(out, rf"Examples?:\n.*saturate {command}")

    def test_version(self):
        code, out, _ = saturate("--version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^saturate \d+\.\d+\.\d+\n$")

    def test_mistakes_name_the_remedy(self):
        self.refused("trian", says="did you mean 'train'?")
        self.refused(says="subcommand is required")
        self.refused("train", "--trian", "x", says="did you mean '--train'?")
        self.refused("train", "--set", "optimizer.ler=1", says="did you mean 'optimizer.lr'?")
        self.refused("train", "--lr", "fast", says=["optimizer.lr must be a number from 0 to 10", '"fast"'])
        self.refused("train", "--out", "x", says="no training text; give --train")
        self.refused("train", "--train", "a", "b", says="give --out DIR")
        self.refused("translate", says="--model is required")
        self.refused("translate", "--model", "x", "--beam", "0", says="--beam")
        self.refused("translate", "--model", "x", "--threads", "0", says="--threads")
        self.refused("eval", says="--model DIR --test SOURCE REFERENCE, or --hyp FILE --ref FILE")
        self.refused("eval", "--hyp", "x", says="--ref")
        self.refused("bench", "stpe", says="what")

    def test_config_file_errors_have_a_place(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.toml")
            with open(path, "w", encoding="utf8") as file:
                file.write("[optimizer]\nlr = 3e-4\nbeat1 = 0.9\n")
            self.refused("train", "--config", path, says=[f"{path}:3:1: ", "did you mean 'optimizer.beta1'?"])

    def test_missing_config_file_is_named(self):
        code, _, err = saturate("train", "--config", "/no/such/file.toml")
        self.assertNotEqual(code, 0)
        self.assertIn("/no/such/file.toml", err)


class BenchAgainst(unittest.TestCase):
    ARGUMENTS = ["gemm", "--shape", "32", "32", "32", "--device", "cpu", "--repeats", "3"]

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory()) if hasattr(self, "enterContext") else tempfile.mkdtemp()
        code, out, err = saturate("bench", *self.ARGUMENTS)
        self.assertEqual(code, 0, err)
        self.row = json.loads(out)

    def file(self, *rows):
        path = os.path.join(self.folder, "rows.jsonl")
        with open(path, "w", encoding="utf8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        return path

    def other(self, ms):
        """A program that says so much time for everything."""
        path = os.path.join(self.folder, "other")
        with open(path, "w", encoding="utf8") as file:
            file.write(f"#!/bin/sh\necho a line before\necho '{json.dumps({**self.row, 'ms': ms})}'\n")
        os.chmod(path, 0o755)
        return path

    def test_rows_say_where_they_come_from(self):
        self.assertEqual(self.row["command"], "saturate bench " + " ".join(self.ARGUMENTS))
        self.assertRegex(self.row["commit"], r"^([0-9a-f]{9}(\+changes)?|unknown)$")
        self.assertTrue(self.row["device"])

    def test_ends_with_1_when_slower_than_a_program(self):
        code, out, err = saturate("bench", *self.ARGUMENTS, "--against", self.other(1e-7))
        self.assertEqual((code, err), (1, ""))
        self.assertIn("1 of 1 times slower beyond noise", out)
        self.assertIn("ms of `saturate bench gemm --shape 32 32 32", out)
        code, out, _ = saturate("bench", *self.ARGUMENTS, "--rounds=8", "--against=" + self.other(1e6))
        self.assertEqual(code, 0)
        self.assertIn("0 of 1 times slower beyond noise", out)

    def test_measures_the_rows_of_a_file_again(self):
        step = {**self.row, "command": "saturate bench attention --shape 1 1 8 16 --device cpu --repeats 1",
                "forward_ms": 1e6, "backward_ms": 1e-7}
        others = [{**self.row, "command": f"saturate bench gemm {rest}"} for rest in ("--ladder", "--against x", "'a b'")]
        code, out, _ = saturate("bench", "--against", self.file({**self.row, "ms": 1e6}, step, *others, {"what": "x"}))
        self.assertEqual(code, 1)
        self.assertIn("1 of 3 times slower beyond noise\n  backward_ms of `saturate bench attention", out)
        code, out, _ = saturate("bench", "gemm", "--against", self.file({**self.row, "ms": 1e6}, step))
        self.assertEqual(code, 0)
        self.assertIn("0 of 1 times", out)
        code, _, _ = saturate("bench", *self.ARGUMENTS, "--against", self.file({**self.row, "ms": 1e-7}, step))
        self.assertEqual(code, 1)

    def test_says_what_it_cannot_compare(self):
        for rows, says in (([{**self.row, "device": "another"}], "nothing there can be compared"),
                           ([{"what": "gemm", "ms": 1}], "no row whose command is"), ([7], ":1: not a row")):
            code, _, err = saturate("bench", "--against", self.file(*rows))
            self.assertEqual(code, 2, err)
            self.assertIn(says, err)
        for arguments, says in (([], "give what to measure"), (["--rounds", "7"], "--against"),
                                (["--against", "/no/such/file"], "cannot read /no/such/file"),
                                (["--against", PROGRAM], "say what both measure"),
                                (["gemm", "--rounds", "3", "--against", "x"], "--rounds")):
            code, _, err = saturate("bench", *arguments)
            self.assertNotEqual(code, 0)
            self.assertIn(says, err)
        ranks = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        done = subprocess.run([PROGRAM, "bench", *self.ARGUMENTS, "--against", PROGRAM], env=ranks, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("without mpirun, srun or torchrun", done.stderr)
        code, _, err = saturate("bench", *self.ARGUMENTS, "--against", "/bin/false")
        self.assertEqual(code, 1)
        self.assertIn("/bin/false ended with code 1", err)


class AttentionLadder(unittest.TestCase):
    ARGUMENTS = ["bench", "attention", "--ladder", "--device", "cpu", "--shape", "1", "2", "64", "16", "--sizes", "8",
                 "16", "--repeats", "2"]

    def test_times_every_implementation_over_lengths(self):
        with tempfile.TemporaryDirectory() as folder:
            plot, lines = os.path.join(folder, "l.svg"), os.path.join(folder, "l.jsonl")
            code, out, err = saturate(*self.ARGUMENTS, "--plot", plot, "--json", lines)
            self.assertEqual(code, 0, err)
            self.assertEqual(out.count("attention_forward_cpu"), 2)
            with open(lines, encoding="utf8") as file:
                rows = [json.loads(line) for line in file]
            self.assertEqual([(r["length"], r["implementation"]) for r in rows],
                             [(n, f"attention_{name}") for n in (8, 16)
                              for name in ("forward_cpu", "forward_materialised", "backward_cpu")])
            self.assertTrue(all(r["speed_up_over_last"] == 1 for r in rows if "materialised" in r["implementation"]))
            self.assertTrue(all(r["ms"] > 0 and r["tflops"] >= 0 for r in rows))
            with open(plot, encoding="utf8") as file:
                self.assertIn("attention_forward_cpu f32", file.read())

    def test_puts_the_times_of_others_beside(self):
        line = {"what": "attention", "batch": 1, "heads": 2, "length": 8, "head_size": 16, "causal": False, "type": "f32"}
        with tempfile.TemporaryDirectory() as folder:
            peers, lines = os.path.join(folder, "p.jsonl"), os.path.join(folder, "l.jsonl")

            def run(*given):
                with open(peers, "w", encoding="utf8") as file:
                    file.writelines((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in given)
                return saturate(*self.ARGUMENTS, "--plot", "", "--json", lines, "--peers", peers)

            code, out, err = run({**line, "implementation": "eager", "forward_ms": 3.5, "forward_and_backward_ms": 10.5},
                                 {**line, "implementation": "flashinfer", "forward_ms": 1.75},
                                 {**line, "implementation": "saturate", "forward_ms": 9},
                                 {**line, "implementation": "math", "length": 9, "forward_ms": 9}, {"what": "step"})
            self.assertEqual(code, 0, err)
            with open(lines, encoding="utf8") as file:
                rows = {(r["implementation"], r["length"]): r for r in map(json.loads, file) if "forward" in r["implementation"]
                        or r["implementation"] == "peer: flashinfer"}
            self.assertEqual(rows["peer: flashinfer", 8]["speed_up_over_eager"], 2)
            mine = rows["attention_forward_cpu", 8]
            self.assertAlmostEqual(mine["speed_up_over_eager"], 3.5 / mine["ms"], delta=0.02 * mine["speed_up_over_eager"])
            self.assertIn("speed_up_over_last", rows["attention_forward_cpu", 16])
            self.assertEqual(out.count("peer: eager"), 2)  # forward and backward
            self.assertNotIn("peer: math", out)
            code, _, err = run({**line, "implementation": "cudnn", "length": 9, "forward_ms": 1})
            self.assertEqual(code, 0, err)
            self.assertIn("no line of", err)
            code, _, err = run({"what": "step"}, '{"what": "attention"')
            self.assertEqual(code, 2, err)
            self.assertIn("p.jsonl:2: not a line of", err)
            code, _, err = saturate(*self.ARGUMENTS, "--peers", "/no/such/file")
            self.assertIn("cannot read /no/such/file", err)

    def test_says_what_it_cannot_do(self):
        code, _, err = saturate(*self.ARGUMENTS, "--plot", "", "--json", "/no/such/folder/l.jsonl")
        self.assertNotEqual(code, 0)
        self.assertIn("/no/such/folder/l.jsonl: cannot be written", err)
        code, _, err = saturate(*self.ARGUMENTS, "--plot", "/no/such/folder/l.svg")
        self.assertNotEqual(code, 0)
        self.assertIn("/no/such/folder/l.svg: cannot be written", err)
        code, _, err = saturate("bench", "attention", "--ladder", "--device", "cpu")
        self.assertNotEqual(code, 0)
        self.assertIn("--shape BATCH HEADS LENGTH HEAD_SIZE", err)


class TuneAttention(unittest.TestCase):
    def test_says_what_is_wrong_with_a_shape(self):
        for arguments, expected in (
                (["--shapes", "3x4x5"], "'3x4x5' is no shape of attention; give SEQUENCESxHEADSxLENGTHxHEAD_SIZE"),
                (["--shapes", "3x4x5x64", "--kv-heads", "3"], "4 heads are no multiple of --kv-heads 3"),
                (["--shapes", "3x4x5x64", "--longest", "16"], "--longest 16 must be from the mean length 5 to all 15 rows"),
                (["--shapes", "3x4x5x64", "--device", "cpu"], "only GPUs are tuned")):
            code, out, err = saturate("tune", "attention", *arguments)
            self.assertNotEqual(code, 0)
            self.assertEqual(out, "")
            self.assertIn(expected, err)


class Config(unittest.TestCase):
    def test_order_is_file_then_flags_then_set(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.toml")
            with open(path, "w", encoding="utf8") as file:
                file.write("[optimizer]\nlr = 0.1\nbeta1 = 0.8\n[train]\nseed = 5\n")
            code, out, err = saturate("train", "--config", path, "--lr", "0.2", "--seed", "6",
                                      "--set", "train.seed=7", "--print-config")
        self.assertEqual(code, 0, err)
        self.assertIn("\nlr = 0.2\n", out)
        self.assertIn("\nbeta1 = 0.8\n", out)
        self.assertIn("\nseed = 7\n", out)

    def test_printed_config_reads_back(self):
        code, first, _ = saturate("train", "--preset", "tiny", "--train", "a b", "c,d", "--print-config")
        self.assertEqual(code, 0)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.toml")
            with open(path, "w", encoding="utf8") as file:
                file.write(first)
            self.assertEqual(saturate("train", "--config", path, "--print-config")[1], first)

    def test_the_last_of_repeated_flags_counts(self):
        code, out, err = saturate("train", "--lr", "0.2", "--seed", "6", "--out", "a", "--lr", "0.3", "--out", "b",
                                  "--set", "train.seed=7", "--set", "train.seed=8", "--resume", "--resume", "--print-config")
        self.assertEqual(code, 0, err)
        for line in ["lr = 0.3", "seed = 8", 'out = "b"']:
            self.assertIn(f"\n{line}\n", "\n" + out)

    def test_single_values_may_be_repeated_in_every_command(self):
        commands = [[]] + [[c] for c in "train translate generate eval bench tune quickstart-data top check info".split()]
        commands += [["doctor"], ["doctor", "compare"], ["lab", "run"], ["lab", "compare"]]
        tried = 0
        for command in commands:
            code, text, err = saturate(*command, "--help")
            self.assertEqual(code, 0, err)
            for flag in re.findall(r"^  (?:-\w,)?(--[\w-]+)(?:,-\w)? [A-Z]", text, re.MULTILINE):
                tried += 1
                _, _, err = saturate(*command, flag, "7", flag, "7", "--no-such-flag")
                self.assertNotIn("At Most 1 required", err, (command, flag))
        self.assertGreater(tried, 60)

    def test_lists_as_toml_writes_them(self):
        for value in ['["en","cs"]', "[en,cs]", "en,cs", "['en', 'cs']"]:
            code, out, err = saturate("train", "--set", f"data.languages={value}", "--print-config")
            self.assertEqual(code, 0, err)
            self.assertIn('\nlanguages = ["en", "cs"]\n', out)

    def test_help_config_lists_keys(self):
        code, out, _ = saturate("train", "--help-config")
        self.assertEqual(code, 0)
        self.assertIn("optimizer.lr = 0.0005", out)


class Info(unittest.TestCase):
    def test_says_what_is_here(self):
        code, out, err = saturate("info")
        self.assertEqual(code, 0, err)
        for word in ["build", "devices", "cpu", "libraries", "cuBLASLt", "NCCL", "MPI", "OpenBLAS", "SentencePiece"]:
            self.assertIn(word, out)

    def test_threads_that_are_no_number_are_refused(self):
        for value in ("abc", "0", "2x", "99999999999"):
            done = subprocess.run([PROGRAM, "info"], capture_output=True, text=True, env={**os.environ, "SATURATE_THREADS": value})
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"SATURATE_THREADS={value}: give a number from 1 to", done.stderr)


class Eval(unittest.TestCase):
    def test_scores_a_translation_against_its_reference(self):
        with tempfile.TemporaryDirectory() as folder:
            hyp, ref = os.path.join(folder, "hyp"), os.path.join(folder, "ref")
            with open(hyp, "w", encoding="utf8") as file:
                file.write("The cat sat on the mat.\nIt was red.\n")
            with open(ref, "w", encoding="utf8") as file:
                file.write("The cat sat on the mat.\nIt was red.\n")
            code, out, err = saturate("eval", "--hyp", hyp, "--ref", ref)
            self.assertEqual(code, 0, err)
            self.assertIn("BLEU = 100.00", out)
            self.assertIn("chrF2 = 100.00", out)
            self.assertIn("BLEU signature: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:", out)
            self.assertIn("chrF2 signature: nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:", out)
            self.assertNotIn("byte order mark", err)
            # A byte order mark is no text: on either side, or on both, the scores are the same.
            with open(ref, "rb") as file:
                text = file.read()
            marked = os.path.join(folder, "marked")
            with open(marked, "wb") as file:
                file.write(b"\xef\xbb\xbf" + text)
            for pair in [(marked, ref), (hyp, marked), (marked, marked)]:
                code, same, err = saturate("eval", "--hyp", pair[0], "--ref", pair[1])
                self.assertEqual((code, same), (0, out), err)
                self.assertIn(f"{marked}: the byte order mark at its start is left out", err)
            with open(ref, "a", encoding="utf8") as file:
                file.write("One more.\n")
            code, _, err = saturate("eval", "--hyp", hyp, "--ref", ref)
            self.assertEqual(code, 2)
            self.assertRegex(err, r"\b2\b.*\b3\b")  # both line counts
            code, _, err = saturate("eval", "--hyp", hyp + ".missing", "--ref", ref)
            self.assertNotEqual(code, 0)
            self.assertIn(hyp + ".missing", err)


class Panels(unittest.TestCase):
    MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "checkpoints", "bart")

    def run_in(self, cache, *args):
        done = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=120,
                              env=os.environ | {"SATURATE_CACHE": cache, "SATURATE_VERBOSE": "load"})
        return done.returncode, done.stdout, done.stderr

    def test_are_kept_mapped_and_removed(self):
        with tempfile.TemporaryDirectory() as folder:
            source, cache = os.path.join(folder, "source"), os.path.join(folder, "cache")
            with open(source, "w", encoding="utf8") as file:
                file.write("5 9 2\n4 7 7 8 2\n")
            translate = ["translate", "--model", self.MODEL, "--device", "cpu", "--ids", "--quiet", "--max-length", "9",
                         "--nbest", "3", "--input", source]
            code, want, err = self.run_in(cache, *translate)
            self.assertEqual(code, 0, err)
            self.assertNotIn("lies in", err)
            code, out, err = self.run_in(cache, "panels", "--model", self.MODEL)
            self.assertEqual(code, 0, err)
            kept = os.listdir(os.path.join(cache, "panels"))
            self.assertEqual(len(kept), 1, kept)
            self.assertIn(kept[0], out)
            code, out, err = self.run_in(cache, *translate)
            self.assertEqual((code, out), (0, want), err)
            self.assertIn("lies in " + os.path.join(cache, "panels", kept[0]), err)
            with open(os.path.join(cache, "panels", kept[0]), "r+b") as file:
                file.truncate(4096)
            code, out, err = self.run_in(cache, *translate)
            self.assertEqual((code, out), (0, want), err)
            self.assertIn("is passed over", err)
            code, out, err = self.run_in(cache, "panels", "--model", self.MODEL, "--remove")
            self.assertEqual((code, os.listdir(os.path.join(cache, "panels"))), (0, []), err)

    def test_a_cache_that_cannot_be_written_is_named(self):
        with tempfile.NamedTemporaryFile() as file:
            code, _, err = self.run_in(file.name, "panels", "--model", self.MODEL)
            self.assertNotEqual(code, 0)
            self.assertIn(file.name + "/panels", err)
            self.assertIn("set SATURATE_CACHE", err)


class Quickstart(unittest.TestCase):
    def test_writes_six_files_of_equal_lengths(self):
        with tempfile.TemporaryDirectory() as folder:
            code, _, err = saturate("quickstart-data", "--out", folder, "--pairs", "300", "--held-out", "40")
            self.assertEqual(code, 0, err)
            for name, lines in [("train", 300), ("valid", 20), ("test", 40)]:
                for language in ["en", "pt"]:
                    with open(os.path.join(folder, f"{name}.{language}"), encoding="utf8") as file:
                        self.assertEqual(len(file.readlines()), lines)

    def test_refuses_a_folder_it_cannot_make(self):
        code, _, err = saturate("quickstart-data", "--out", "/dev/null/x")
        self.assertEqual(code, 1)
        self.assertIn("/dev/null/x", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
