#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`saturate doctor` as a user meets it: traces in, verdicts and exit codes out. First argument: the program."""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
GPU = {"device": 0, "context": 1, "stream": 7}


def doctor(*arguments):
    done = subprocess.run([PROGRAM, "doctor", *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def training(steps=30, loader_us=0.0, host_us=5.0, kernel_us=100.0, kernels=20):
    """A trace as torch.profiler writes it, of a loop that waits for data, launches kernels and waits for them."""
    events, now, correlation = [], 1000.0, 0

    def add(category, name, start, duration, **args):
        gpu = category in ("kernel", "gpu_memcpy")
        events.append({"ph": "X", "cat": category, "name": name, "pid": 0 if gpu else 42, "tid": 7 if gpu else 42,
                       "ts": round(start, 3), "dur": round(duration, 3), "args": args})

    device = 0.0
    for step in range(steps):
        begin = now
        if loader_us:
            add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", now, loader_us)
            now += loader_us
        for _ in range(kernels):
            now += host_us
            correlation += 1
            add("cuda_runtime", "cudaLaunchKernel", now, 4.0, correlation=correlation)
            now += 4.0
            start = max(now + 2.0, device + 1.0)
            add("kernel", "sm90_xmma_gemm_bf16bf16_bf16f32", start, kernel_us, correlation=correlation,
                grid=[512, 1, 1], block=[256, 1, 1], **GPU)
            device = start + kernel_us
        correlation += 1
        end = max(now + 2.0, device + 6.0)
        add("cuda_runtime", "cudaDeviceSynchronize", now, end - now, correlation=correlation)
        now = end
        add("user_annotation", f"ProfilerStep#{step}", begin, now - begin)
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
            "traceEvents": events}


def rank_of_two(rank, late_us, steps=20):
    """One rank's trace of steps of 10 ms, each with an all-reduce that ends on both ranks at once."""
    gpu, events = {"device": rank, "context": 1}, []

    def add(category, name, start, duration, **args):
        events.append({"ph": "X", "cat": category, "name": name, "pid": 42, "tid": 42, "ts": start, "dur": duration, "args": args})

    for step in range(steps):
        begin = 1e6 + 1e4 * step
        add("user_annotation", f"ProfilerStep#{step}", begin, 9999.0)
        for i, (name, start, end, stream) in enumerate((("sm90_xmma_gemm_bf16bf16_bf16f32", 100 + late_us, 4000 + late_us, 7),
                                                        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 4010 + late_us, 8000, 20))):
            number = 2 * step + i + 1
            add("cuda_runtime", "cudaLaunchKernel", begin + 80 + late_us + 8 * i, 5.0, correlation=number)
            add("kernel", name, begin + start, end - start, correlation=number, grid=[512, 1, 1], block=[256, 1, 1], stream=stream, **gpu)
        add("cuda_runtime", "cudaDeviceSynchronize", begin + 100 + late_us, 7910 - late_us, correlation=10**6 + step)
    return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, "traceEvents": events}


class Doctor(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, content):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def trace(self, name, **settings):
        text = json.dumps(training(**settings)).encode()
        return self.file(name, gzip.compress(text) if name.endswith(".gz") else text)

    def refused(self, *arguments, says, code=None):
        got, out, err = doctor(*arguments)
        self.assertNotEqual(got, 0)
        if code is not None:
            self.assertEqual(got, code)
        self.assertEqual(out, "")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, err)

    def test_planted_causes_are_named(self):
        cases = [("input-bound", {"loader_us": 4000.0}), ("launch-bound", {"kernel_us": 3.0, "kernels": 300}),
                 ("GPU-bound", {"kernel_us": 800.0})]
        for headline, settings in cases:
            for name in ("trace.json", "trace.json.gz"):
                code, out, err = doctor(self.trace(name, **settings))
                self.assertEqual(code, 0, err)
                self.assertTrue(out.startswith(f"VERDICT  {headline} (high confidence)"), out)

    def test_json_sums_and_keeps_the_planted_milliseconds(self):
        code, out, err = doctor(self.trace("t.json.gz", loader_us=4000.0), "--format", "json")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        device = report["devices"][0]
        self.assertEqual(sum(device["leaves_ns"].values()), device["wall_ns"])
        self.assertEqual(report["steps"]["count"], 29)
        self.assertAlmostEqual(device["leaves_ns"]["loader"] / 29 / 4e6, 1, delta=0.01)
        self.assertEqual(report["verdict"]["id"], "input_bound")

    def test_html_is_one_page(self):
        code, out, err = doctor(self.trace("t.json", loader_us=4000.0), "--format", "html")
        self.assertEqual(code, 0, err)
        self.assertTrue(out.startswith("<!DOCTYPE html>"))
        self.assertIn("<h1>input-bound</h1>", out)
        self.assertNotRegex(out, r"https?:|<script|<link")

    def test_perfetto_trace(self):
        path = os.path.join(self.folder.name, "t.pftrace")
        code, out, err = doctor(self.trace("t.json"), "--format", "perfetto", "-o", path)
        self.assertEqual((code, out), (0, ""), err)
        with open(path, "rb") as file:
            content = file.read()
        self.assertEqual(content[0], 0x0A)  # the first packet
        for text in (b"GPU 0", b"where the time went", b"tensor-core kernels", b"idle: ", b"cudaLaunchKernel"):
            self.assertIn(text, content)

    def test_output_goes_to_a_file(self):
        path = os.path.join(self.folder.name, "report.txt")
        code, out, err = doctor(self.trace("t.json"), "-o", path)
        self.assertEqual((code, out), (0, ""), err)
        with open(path, encoding="utf8") as file:
            self.assertTrue(file.read().startswith("VERDICT"))

    def test_warm_up_can_be_given(self):
        code, out, _ = doctor(self.trace("t.json"), "--warmup", "9", "--format", "json")
        self.assertEqual(code, 0)
        self.assertEqual(json.loads(out)["steps"]["count"], 20)
        self.refused(self.trace("t.json"), "--warmup", "100", says="smaller --warmup", code=2)

    def test_compare_and_its_gates(self):
        slow, fast = self.trace("a.json", loader_us=4000.0), self.trace("b.json.gz")
        code, out, err = doctor("compare", slow, fast, "--fail-if", "step>3%", "--fail-if", "loader>0%")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"idle: waiting for data\s+4 ms\s+0 ns\s+-100.0%")
        code, out, err = doctor("compare", fast, slow, "--fail-if", "step>3%")
        self.assertEqual(code, 1)
        self.assertIn("step rose", err)
        self.refused("compare", fast, slow, "--fail-if", "stp>3%", says="did you mean 'step'?", code=2)
        self.refused("compare", fast, says="traces")

    def test_bad_input_says_what_where_and_the_remedy(self):
        text = json.dumps(training(steps=3)).encode()
        self.refused(self.file("cut.json", text[:5000]), says=["cut.json", "at byte ", "copy it again"], code=2)
        self.refused(self.file("cut.json.gz", gzip.compress(text)[:800]), says=["cut.json.gz", "after byte ", "truncated"])
        broken = bytearray(gzip.compress(text))
        broken[400] ^= 0xFF
        self.refused(self.file("broken.json.gz", bytes(broken)), says="broken.json.gz")
        pipe = os.path.join(self.folder.name, "pipe")
        os.mkfifo(pipe)
        self.refused(pipe, says="is no file", code=2)
        self.refused(self.file("empty.json", b""), says="is empty", code=2)
        self.refused(self.file("binary", bytes(range(256))), says="no trace that is known", code=2)
        self.refused(self.file("cpu.json", b'{"traceEvents": []}'), says="ProfilerActivity.CUDA", code=2)
        self.refused("/no/such/trace.json", says="/no/such/trace.json")
        self.refused(self.folder.name, says="is a directory")
        self.refused(says="saturate doctor trace.json.gz", code=2)
        self.refused(self.trace("t.json"), "--formt", "json", says="did you mean '--format'?", code=2)

    def test_options_that_would_be_ignored_are_refused(self):
        trace = self.trace("t.json")
        for options in (["--delay", "1"], ["--keep", "kept"], ["--memory"], ["--duration", "2"]):
            self.refused(trace, *options, says=[options[0], "needs a command to watch"], code=2)
        self.refused("--pid", "1", "--keep", "kept", says=["--keep", "needs a command to watch"], code=2)
        self.refused("--pid", "1", "--step-ms", "3", says=["--step-ms", "no step is seen"], code=2)
        self.refused("--format", "json", "compare", trace, trace, says="--format does not go with compare", code=2)
        self.refused("--warmup", "3", "compare", trace, trace, says="--warmup stands before compare", code=2)
        self.refused(trace, "compare", trace, trace, says="t.json stands before compare", code=2)
        self.refused("--pid", "1", "--format", "perfetto", says="--pid has no perfetto report", code=2)
        self.refused(trace, "--step-ms", "nan", says="--step-ms", code=2)

    def test_a_report_that_could_not_be_written_is_no_work(self):
        for arguments in ([self.trace("t.json")], ["compare", self.trace("t.json"), self.trace("t.json")],
                          ["--pid", str(os.getpid()), "--duration", "60"]):
            self.refused(*arguments, "-o", "/no/report", says="/no/report: cannot be written", code=1)
            self.refused(*arguments, "-o", self.folder.name, says="is a folder", code=2)
        self.assertEqual(doctor(self.trace("t.json"), "-o", "/dev/null")[0], 0)
        self.refused(self.trace("t.json"), "--format", "perfetto", says="-o trace.pftrace", code=2)

    def test_a_report_does_not_replace_what_it_is_read_from(self):
        trace, other = self.trace("t.json.gz"), self.trace("u.json.gz")
        size = os.path.getsize(trace)
        link = os.path.join(self.folder.name, "link")
        os.symlink(trace, link)
        self.refused(trace, "-o", trace, says="is what the report is read from", code=2)
        self.refused(trace, "-o", link, says="is what the report is read from", code=2)
        self.refused("compare", other, trace, "-o", trace, says="is what the report is read from", code=2)
        self.refused(self.folder.name, "-o", os.path.join(self.folder.name, "host.sat"), says="is read from", code=2)
        self.assertEqual(os.path.getsize(trace), size)

    def test_limits_need_steps(self):
        short = self.trace("short.json", steps=1, kernels=2)
        code, out, err = doctor("compare", short, short)
        self.assertEqual(code, 0, err)
        self.assertIn("whole captures", out)
        self.refused("compare", short, short, "--fail-if", "step>3%", says=["--fail-if", "no steps"], code=2)

    def test_mixed_up_arguments_get_a_hint(self):
        trace = self.trace("t.json")
        self.refused("python", "train.py", says="saturate doctor -- python train.py", code=2)
        self.refused(PROGRAM, says="is a program; to watch it", code=2)
        self.refused(self.file("r.nsys-rep", b"x" * 40), says="nsys export --type sqlite", code=2)
        self.refused(self.file("host.sat", b"x" * 40), says="give its folder", code=2)
        self.refused("compare", trace, trace, "--format", "json", says="unknown argument '--format'", code=2)
        self.refused("compare", trace, trace, "--fail-iff", "step>3%", says="did you mean '--fail-if'?", code=2)
        self.refused("--keep", "", "--", "true", says="--keep is empty", code=2)

    def test_without_a_driver_it_says_so_before_the_command_and_after(self):
        library = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "lib", "libsaturate_capture.so")
        if not os.path.exists(library):
            self.skipTest("libsaturate_capture.so is not built")
        environment = {**os.environ, "SATURATE_NVML": "/nowhere/libnvidia-ml.so.1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([PROGRAM, "doctor", "--", "sh", "-c", "echo ran >&2; exit 3"], capture_output=True,
                              text=True, timeout=60, env=environment)
        self.assertEqual(done.returncode, 3, done.stderr)  # the command's
        before, after = done.stderr.split("ran\n")
        for said in (before, after):
            self.assertIn("no NVIDIA driver is here", said)
        self.assertIn("started CUDA in no process and this machine shows no GPU", after)

    def test_ranks_are_told_apart(self):
        for rank, late_us in ((0, 0.0), (1, 3000.0)):
            self.file(f"trace_rank{rank}.json", json.dumps(rank_of_two(rank, late_us)).encode())
        code, out, err = doctor("--ranks", self.folder.name, "--format", "json")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        self.assertEqual(report["verdict"]["headline"], "held up by rank 1")
        ranks = report["ranks"]
        self.assertEqual((ranks["straggler"]["rank"], ranks["straggler"]["cause"]), (1, "host"))
        self.assertAlmostEqual(ranks["straggler"]["waited_for_ns"] / 3e6, 1, delta=0.05)
        self.assertEqual((ranks["unmatched"], ranks["shown_rank"], len(ranks["ranks"])), (0, 1, 2))
        files = [os.path.join(self.folder.name, f"trace_rank{rank}.json") for rank in (1, 0)]
        code, out, err = doctor("--ranks", *files)
        self.assertIn("What follows is of rank 1.", out)
        page = os.path.join(self.folder.name, "all.pftrace")
        self.assertEqual(doctor("--ranks", *files, "--format", "perfetto", "-o", page)[0], 0)
        with open(page, "rb") as file:
            self.assertIn(b"rank 1: GPU 1", file.read())
        self.refused("--ranks", files[0], says=["one rank was found", "at least two"])
        self.refused("--ranks", *files, "-o", files[0], says="is what the report is read from")
        self.refused(files[0], "--ranks", files[1], says="--ranks takes the captures of all ranks")
        self.refused("--graph-nodes", files[0], says="needs a command to watch")

    def test_help_has_examples(self):
        code, out, _ = doctor("--help")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"Examples?:\n.*saturate doctor")


if __name__ == "__main__":
    unittest.main()
