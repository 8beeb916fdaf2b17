#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`saturate doctor -- command` whole, on a program with an imaginary CUDA. Arguments: the program, the watched one."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

WATCHED = sys.argv.pop(2)
PROGRAM = sys.argv.pop(1)
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("CUDA_INJECTION64_PATH", "RANK")}


def doctor(*options, watch=(), environment=None):
    done = subprocess.run([PROGRAM, "doctor", *options, "--", WATCHED, *watch], capture_output=True, text=True, timeout=60,
                          env={**ENVIRONMENT, **(environment or {})})
    return done.returncode, done.stdout, done.stderr


def kernels(report):
    return sum(k["count"] for k in report["devices"][0]["kernels"])


def steps(report):
    """With those that are left out as warm-up, of which a busy machine makes more."""
    return report["steps"]["count"] + report["steps"]["warm_up"]


class Watch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def report(self, *watch, options=(), code=0, environment=None):
        path = os.path.join(self.folder.name, "report.json")
        got, out, err = doctor("--format", "json", "-o", path, *options, watch=watch, environment=environment)
        self.assertEqual(got, code, err)
        with open(path, encoding="utf8") as file:
            return json.load(file), out, err

    def test_every_launch_is_captured_and_output_is_the_commands(self):
        report, out, _ = self.report("--steps", "80", "--launches", "12")
        self.assertEqual(out, "hello\nlaunched 960\n")
        self.assertEqual(kernels(report) + 12 * report["steps"]["warm_up"] + 12, 960)
        self.assertIn("12 operations", report["steps"]["rule"])
        self.assertEqual(report["devices"][0]["name"], "imaginary device")

    def test_parts_left_out_are_left_out(self):
        report, _, _ = self.report("--steps", "80", "--launches", "12", environment={"SATURATE_CAPTURE_WITHOUT": "flush,small,hooks,ids"})
        self.assertGreaterEqual(kernels(report) + 12 * report["steps"]["warm_up"], 900)
        self.assertTrue(any("recorded without flush,small,hooks,ids" in n for n in report["capture"]["notes"]))
        code, _, err = doctor(watch=["--steps", "40"], environment={"SATURATE_CAPTURE_WITHOUT": "kernels,graphs,copies"})
        self.assertEqual((code, "VERDICT" in err), (0, False), err)

    def test_a_program_that_changes_its_graphs_is_not_flushed(self):
        # Known by a library of XLA's, as JAX loads it. CUPTI hands over what fills a buffer, and the rest at the end.
        library = os.path.join(self.folder.name, "xla_cuda_plugin.so")
        shutil.copy(os.path.join(os.path.dirname(WATCHED), "libfake_nvml.so"), library)
        report, _, _ = self.report("--seconds", "1.2", "--launches", "12", environment={"LD_PRELOAD": library})
        self.assertTrue([n for n in report["capture"]["notes"] if "is not asked for its records" in n], report["capture"]["notes"])
        self.assertEqual(report["capture"]["framework"], "JAX")
        self.assertGreater(report["steps"]["count"], 50)
        report, _, _ = self.report("--steps", "80", "--launches", "12")
        self.assertFalse([n for n in report["capture"]["notes"] if "is not asked for its records" in n])

    def test_a_newer_cupti_beside_the_library_records_jax(self):
        # JAX has loaded jaxlib/*.so and jax_cuda13_plugin/_versions.so when it starts CUDA to count devices, and not yet
        # XLA's plugin (jax 0.10.2 with its CUDA 13 wheels, looked at inside cuInit).
        beside = os.path.join(self.folder.name, "beside")
        for path in (beside, os.path.join(self.folder.name, "jaxlib")):
            os.mkdir(path)
        build = os.path.dirname(os.path.dirname(WATCHED))
        library = shutil.copy(os.path.join(build, "lib", "libsaturate_capture.so"), beside)
        newer = shutil.copy(os.path.join(build, "test", "fake_cupti", "libcupti.so"), os.path.join(beside, "libcupti.so.13"))
        of_jax = shutil.copy(os.path.join(os.path.dirname(WATCHED), "libfake_nvml.so"), os.path.join(self.folder.name, "jaxlib", "_jax.so"))
        for preload, version in (("", 130001), (of_jax, 130500)):
            keep = os.path.join(self.folder.name, str(version))  # the imaginary launches are the older copy's alone
            doctor("--library", library, "--keep", keep, watch=["--steps", "20"], environment={
                "FAKE_CUPTI_NEWER": newer, "FAKE_CUPTI_VERSION": "130001", "LD_PRELOAD": preload})
            own, = [f for f in os.listdir(keep) if f.endswith(".sat") and f != "host.sat"]
            with open(os.path.join(keep, own), "rb") as file:
                self.assertIn(f"recorded by CUPTI {version}".encode(), file.read())

    def test_text_goes_to_standard_error(self):
        code, out, err = doctor(watch=["--steps", "60"])
        self.assertEqual((code, out), (0, "hello\nlaunched 600\n"))
        self.assertIn("VERDICT", err)
        self.assertRegex(err, r"first\(float\*\)")
        self.assertRegex(err, r"recorded \d+% of \d+\.\d s")
        self.assertRegex(err, r"host: \d+ threads? .* context switches")

    def test_a_planted_loader_ranks_first(self):
        report, _, _ = self.report("--steps", "40", "--load-ms", "20", "--kernel-us", "300")
        self.assertEqual(report["verdict"]["id"], "input_bound")
        leaves = report["devices"][0]["leaves_ns"]
        # Of 20 ms a step; the rest grows with the load of the machine.
        self.assertGreater(leaves["loader"], 0.75 * 20e6 * report["steps"]["count"])

    def test_ranks_of_one_command_are_told_apart(self):
        path = os.path.join(self.folder.name, "report.json")
        both = "; ".join(f"RANK={rank} {WATCHED} --steps 60 --graph > {os.devnull} & a{rank}=$!" for rank in (0, 1)).replace("; ", "\n")
        done = subprocess.run([PROGRAM, "doctor", "--format", "json", "-o", path, "--", "sh", "-c", both + "\nwait $a0 $a1"],
                              capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf8") as file:
            ranks = json.load(file)["ranks"]
        self.assertEqual([rank["rank"] for rank in ranks["ranks"]], [0, 1])
        self.assertTrue(ranks["whole_graphs"])

    def test_a_doctor_for_each_rank(self):
        keep = os.path.join(self.folder.name, "captures")
        for rank in ("0", "1"):
            code, _, err = doctor("--keep", keep, watch=["--steps", "60"], environment={"RANK": rank, "WORLD_SIZE": "2"})
            self.assertEqual(code, 0, err)
            self.assertIn(f"saturate doctor --ranks {keep}", err)
        self.assertEqual(sorted(os.listdir(keep)), ["rank0", "rank1"])
        done = subprocess.run([PROGRAM, "doctor", "--ranks", keep], capture_output=True, text=True, timeout=60)
        self.assertIn("no time in common", done.stdout, done.stderr)  # they ran one after the other

    def test_graphs_are_steps(self):
        report, _, _ = self.report("--steps", "100", "--graph", "--launches", "30")
        self.assertRegex(report["steps"]["rule"], r"\b1 operations? ")
        self.assertGreater(steps(report), 80)

    def test_graphs_made_before_the_recording_begins(self):
        report, _, _ = self.report("--steps", "400", "--graph", "--launches", "30", "--kernel-us", "100",
                                   options=["--delay", "0.4", "--duration", "0.4"])
        wall = report["devices"][0]["wall_ns"]
        self.assertLess(wall, 0.5e9)
        self.assertGreater(wall, 0.2e9)
        self.assertRegex(report["steps"]["rule"], r"\b1 operations? ")

    def test_exit_codes_and_signals(self):
        self.assertEqual(doctor(watch=["--exit", "7"])[0], 7)
        self.assertEqual(doctor(watch=["--end", "abort"])[0], 128 + signal.SIGABRT)
        self.assertEqual(doctor(watch=["--end", "term"])[0], 128 + signal.SIGTERM)

    def test_ends_without_atexit_lose_nothing_that_is_finished(self):
        for end, code, says in (("_exit", 5, ""), ("quick_exit", 5, ""), ("abort", 128 + signal.SIGABRT, "by signal 6 (Aborted)"),
                                ("crash", 128 + signal.SIGSEGV, "by signal 11 (Segmentation fault)"),
                                ("term", 128 + signal.SIGTERM, "by signal 15 (Terminated)"),
                                ("kill", 128 + signal.SIGKILL, "by signal 9 (Killed)")):  # by itself
            with self.subTest(end):
                # Far ahead: what the device has still to do shares a buffer of CUPTI's with what it has done.
                report, _, err = self.report("--end", end, "--exit", "5", "--steps", "40", "--launches", "4", "--kernel-us", "5000",
                                             "--ahead", code=code)
                done = sum(k["count"] for k in report["devices"][0]["kernels"]) + 4
                left = [re.search(r"while the device had (\d+) operations to do", n) for n in report["capture"]["notes"]]
                left = sum(int(found[1]) for found in left if found)
                self.assertGreater(left, 10)
                self.assertLessEqual(abs(done + left - 160), 4, report["capture"]["notes"])  # whole steps
                self.assertTrue(any(says in n for n in report["capture"]["notes"]), report["capture"]["notes"])
                self.assertFalse([n for n in report["capture"]["notes"] if "cut off" in n])

    def test_killed_from_outside_loses_what_it_says(self):
        command = f"{WATCHED} --seconds 9 --launches 4 --kernel-us 5000 --ahead > {os.devnull} & sleep 1.5; kill -9 $!; wait $!; exit 9"
        keep = os.path.join(self.folder.name, "kept")
        done = subprocess.run([PROGRAM, "doctor", "--keep", keep, "--", "sh", "-c", command], capture_output=True, text=True,
                              env=ENVIRONMENT, timeout=60)
        self.assertEqual(done.returncode, 9)
        self.assertRegex(done.stderr, r"process \d+ ended without notice")
        self.assertIn("cut off at byte", done.stderr)
        self.assertGreaterEqual(int(re.search(r"n=(\d+)", done.stderr)[1]), 40)  # of at most 75, and a slow start

    def test_one_killed_at_its_start_is_told(self):
        _, _, err = doctor(watch=["--steps", "1", "--launches", "1", "--kernel-us", "900000", "--call-us", "1", "--ahead", "--end", "kill9"])
        self.assertIn("it ended before any that was finished", err)
        self.assertIn("by signal 9 (Killed)", err)

    def test_a_full_disk_ends_the_capture_and_not_the_program(self):
        keep = os.path.join(self.folder.name, "kept")
        command = f"ulimit -f 300; exec {WATCHED} --seconds 2"  # 150 or 300 KiB, some 100 ms
        done = subprocess.run([PROGRAM, "doctor", "--keep", keep, "--", "sh", "-c", command], capture_output=True, text=True,
                              env=ENVIRONMENT, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"recording ended in second \d+: .*cannot write; is the disk full")

    def test_a_process_that_becomes_another_program_is_two_captures(self):
        keep = os.path.join(self.folder.name, "kept")
        code, out, err = doctor("--keep", keep, watch=["--steps", "60", "--end", "exec"])
        self.assertEqual((code, out.count("launched 600")), (0, 2), err)
        self.assertEqual(len([f for f in os.listdir(keep) if re.match(r"\d+(\.2)?\.sat$", f)]), 2)
        self.assertIn("became another program", err)

    def test_a_signal_is_passed_on(self):
        with subprocess.Popen([PROGRAM, "doctor", "--", WATCHED, "--end", "wait", "--exit", "6"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as run:
            while run.stdout.readline() != "waiting\n":
                pass
            run.send_signal(signal.SIGTERM)
            _, err = run.communicate(timeout=60)
            self.assertEqual(run.returncode, 6)
            self.assertIn("VERDICT", err)

    def test_a_worker_process_leaves_the_capture_whole(self):
        report, out, _ = self.report("--fork", "--steps", "60")
        self.assertIn("launched 600\n", out)
        self.assertGreater(steps(report), 50)
        self.assertFalse([n for n in report["capture"]["notes"] if "cut off" in n])

    def test_a_profiler_of_the_program_sees_everything(self):
        report, out, _ = self.report("--other-profiler", "--steps", "60")
        self.assertIn("profiled 200 of 200 by 200 numbers, unknown 0\n", out)
        self.assertTrue([n for n in report["capture"]["notes"] if n.startswith("capture lost from second 0 on")])
        self.assertLess(kernels(report), 600)

    def test_where_cupti_has_several_clients_both_see_everything(self):
        report, out, _ = self.report("--neighbour", "--steps", "60", environment={"FAKE_CUPTI_VERSION": "130500"})
        self.assertIn("profiled 200 of 200 by 200 numbers, unknown 0\n", out)
        notes = report["capture"]["notes"]
        self.assertTrue([n for n in notes if "as one of several clients" in n], notes)
        self.assertTrue([n for n in notes if "which recorded beside this capture" in n], notes)
        self.assertFalse([n for n in notes if "capture lost" in n], notes)
        self.assertEqual(kernels(report) + 10 * report["steps"]["warm_up"] + 10, 800)

    def test_kernels_that_compute_in_float64_say_so(self):
        for version in ("0", "130500"):
            several = ["--neighbour"] if version != "0" else []
            report, _, _ = self.report("--module", "--steps", "60", *several, environment={"FAKE_CUPTI_VERSION": version})
            self.assertEqual({k["name"] for k in report["devices"][0]["kernels"]}, {"wave [float64]"})
        report, _, _ = self.report("--module", "--steps", "60", environment={"SATURATE_CAPTURE_WITHOUT": "code"})
        self.assertEqual({k["name"] for k in report["devices"][0]["kernels"]}, {"wave"})

    def test_callbacks_are_left_to_a_program_that_wants_them(self):
        report, out, _ = self.report("--subscriber", "--module", "--steps", "60")
        self.assertIn("callbacks: 0\n", out)
        self.assertEqual({k["name"] for k in report["devices"][0]["kernels"]}, {"wave"})
        notes = report["capture"]["notes"]
        self.assertFalse([n for n in notes if "capture lost" in n])
        self.assertTrue([n for n in notes if "took CUPTI's callbacks in second 0" in n], notes)

    def test_a_profiler_of_the_older_interface_finds_it_free(self):
        report, out, _ = self.report("--other-profiler", "--steps", "60", environment={"FAKE_CUPTI_VERSION": "130500"})
        self.assertIn("profiled 200 of 200 by 200 numbers, unknown 0\n", out)
        self.assertTrue([n for n in report["capture"]["notes"] if "unless all use its newer interface (this one does not)" in n])

    def test_all_ranks_are_in_the_report(self):
        keep = os.path.join(self.folder.name, "kept")
        code, out, err = doctor("--keep", keep, watch=["--spawn", "--steps", "60"])
        self.assertEqual((code, out.count("launched 600")), (0, 2), err)
        files = sorted(os.listdir(keep))
        self.assertEqual(len(files), 4)
        self.assertRegex(files[0], r"^\d+\.rank[01]\.sat$")
        self.assertEqual(files[2:], ["counters.json", "host.sat"])
        again = subprocess.run([PROGRAM, "doctor", keep, "--format", "json"], capture_output=True, text=True, check=True)
        report = json.loads(again.stdout)
        self.assertGreater(kernels(report) + 10 * report["steps"]["warm_up"], 900)

    def test_what_was_seen_from_outside_is_in_the_report(self):
        keep = os.path.join(self.folder.name, "kept")
        code, _, err = doctor("--keep", keep, watch=["--seconds", "2"], environment={"SATURATE_NVML": "/nowhere/libnvml.so"})
        self.assertEqual(code, 0, err)
        self.assertIn("Seen from outside", err)
        self.assertIn("no GPU counters: ", err)
        again = subprocess.run([PROGRAM, "doctor", keep, "--format", "json"], capture_output=True, text=True, check=True)
        report = json.loads(again.stdout)
        counters = {c["id"]: c for c in report["counters"]}
        self.assertGreater(counters["cpu_cores"]["mean"], 0)
        self.assertGreaterEqual(counters["cpu_cores"]["samples"], 2)
        step_s = report["steps"]["median_ns"] / report["capture"]["slowdown"] * 1e-9
        switches = counters["voluntary_switches"]
        self.assertAlmostEqual(switches["a_step"], switches["mean"] * step_s)
        self.assertGreater(switches["a_step"], 0)

    def test_rates_of_copies_are_measured_three_times(self):
        path, count = os.path.join(self.folder.name, "report.json"), os.path.join(self.folder.name, "count")
        nvml = os.path.join(self.folder.name, "nvml.json")
        with open(nvml, "w", encoding="utf8") as file:
            json.dump({"driver": "580.1", "gpus": [{"name": "A", "uuid": "GPU-1"}]}, file)
        environment = {"SATURATE_NVML": os.path.join(os.path.dirname(WATCHED), "libfake_nvml.so"), "SATURATE_FAKE_NVML": nvml,
                       "SATURATE_CUDA_DRIVER": os.path.join(os.path.dirname(WATCHED), "fake_libcuda.so"),
                       "SATURATE_CACHE": os.path.join(self.folder.name, "cache"), "FAKE_CUDA_COUNT": count}

        def rates(**more):
            code, _, err = doctor("--format", "json", "-o", path, watch=["--steps", "60"], environment={**environment, **more})
            self.assertEqual(code, 0, err)
            with open(path, encoding="utf8") as file:
                report = json.load(file)
            return report["copy_rates"], report["capture"]["notes"]

        first, _ = rates()
        self.assertEqual(first["device"], "imaginary device")
        for key, rate in (("pinned_to_device", 32), ("pinned_to_host", 32), ("pageable_to_device", 8), ("pageable_to_host", 8)):
            self.assertLess(first[key + "_gb_per_s"], 1.01 * rate)
            self.assertGreater(first[key + "_gb_per_s"], 0.5 * rate)  # on a loaded machine
        rates()
        third, _ = rates()
        self.assertGreaterEqual(third["pinned_to_device_gb_per_s"], first["pinned_to_device_gb_per_s"])
        self.assertEqual(rates()[0], third)  # from the cache
        self.assertEqual(os.path.getsize(count), 3)
        rates(CUDA_VISIBLE_DEVICES="0")  # perhaps another GPU
        self.assertEqual(os.path.getsize(count), 4)
        none, notes = rates(FAKE_CUDA_REFUSES="1", CUDA_VISIBLE_DEVICES="1")
        self.assertIsNone(none)
        self.assertIn("rates of copies were not measured: the GPU takes no context (CUDA error 2)", notes)

    def test_what_is_dear_is_recorded_in_windows_and_its_cost_is_found(self):
        path = os.path.join(self.folder.name, "report.json")
        code, _, err = doctor("--format", "json", "-o", path, environment={"FAKE_CUPTI_COST_NS": "30000"},
                              watch=["--seconds", "12", "--launches", "100", "--kernel-us", "2", "--call-us", "8"])  # a period of 8
        self.assertEqual(code, 0, err)
        with open(path, encoding="utf8") as file:
            report = json.load(file)
        self.assertLess(report["devices"][0]["wall_ns"], 8e9)  # of twelve seconds
        self.assertIn("100 operations", report["steps"]["rule"])
        shares = [re.match(r"recorded (\d+)% of", note) for note in report["capture"]["notes"]]
        self.assertLess([int(found[1]) for found in shares if found][0], 90)
        self.assertLess(report["devices"][0]["leaves_ns"].get("unknown", 0), 0.05 * report["devices"][0]["wall_ns"])
        self.assertFalse([n for n in report["capture"]["notes"] if "what issued them" in n])
        # 38 us a launch instead of 8; a loaded machine makes both slower.
        self.assertGreater(report["capture"]["slowdown"], 1.05)
        self.assertLess(report["capture"]["slowdown"], 20)

    def test_memory_that_the_program_takes_is_followed(self):
        report, _, _ = self.report("--steps", "80", "--leak-mib", "3", "--kernel-us", "200", options=["--memory"])
        memory = report["devices"][0]["memory"]
        self.assertEqual(memory["source"], "cuda_calls")
        self.assertEqual(memory["allocated_most"], (80 * 3 + 3) * 2**20)
        self.assertEqual(memory["reserved_most"], memory["allocated_most"])
        self.assertIn("what the program allocates on device 0 grew", report["memory_drift"])
        self.assertIn("about 3.", report["memory_drift"])
        self.assertIn("MiB a step", report["memory_drift"])

    def test_memory_is_not_followed_unasked(self):
        report, _, _ = self.report("--steps", "80", "--leak-mib", "3", "--kernel-us", "200", "--stream-sync")
        self.assertNotIn("memory", report["devices"][0])
        self.assertEqual({w["name"] for w in report["devices"][0]["idle_by_call"] if w["leaf"] == "sync"},
                         {"cudaStreamSynchronize"})

    def test_what_pools_keep_is_told_apart(self):
        code, _, err = doctor("--memory", watch=["--steps", "40", "--leak-mib", "1", "--pooled"])
        self.assertEqual(code, 0)
        self.assertIn("Memory that the program took from CUDA", err)
        self.assertIn("at most 41.0 MiB allocated of 160 MiB reserved", err)

    def test_memory_of_several_processes_adds_up(self):
        report, _, _ = self.report("--spawn", "--steps", "60", "--leak-mib", "2", options=["--memory"])
        self.assertGreater(report["devices"][0]["memory"]["allocated_most"], 1.2 * 122 * 2**20)

    def test_memory_that_changes_too_often_is_not_followed(self):
        report, _, _ = self.report("--seconds", "2", "--leak-mib", "1", "--launches", "1", "--kernel-us", "20",
                                   options=["--memory"])
        notes = [n for n in report["capture"]["notes"] if "its own account of it ends with second" in n]
        self.assertEqual(len(notes), 1, report["capture"]["notes"])

    def test_a_wait_says_what_for(self):
        report, _, _ = self.report("--steps", "60", "--kernel-us", "300", "--stream-sync", options=["--memory"])
        names = {w["name"] for w in report["devices"][0]["idle_by_call"] if w["leaf"] == "sync"}
        self.assertEqual(names, {"cudaStreamSynchronize (stream 7)"})

    def test_a_host_far_ahead_is_no_wait_where_windows_are_joined(self):
        path = os.path.join(self.folder.name, "report.json")
        code, _, err = doctor("--format", "json", "-o", path, environment={"FAKE_CUPTI_COST_NS": "12000"},
                              watch=["--seconds", "9", "--launches", "50", "--kernel-us", "60", "--call-us", "8", "--ahead"])
        self.assertEqual(code, 0, err)
        with open(path, encoding="utf8") as file:
            report = json.load(file)
        shares = [re.match(r"recorded (\d+)% of", note) for note in report["capture"]["notes"]]
        self.assertLess([int(found[1]) for found in shares if found][0], 90)
        device = report["devices"][0]
        waits = {k: v for k, v in device["leaves_ns"].items() if k in ("dependency", "unknown", "host_code", "sync")}
        self.assertLess(sum(waits.values()), 0.02 * device["wall_ns"], waits)  # 10% of each window when cut at one time
        self.assertLess(report["replay"]["unexplained"], 0.02)

    def test_a_part_of_the_run(self):
        report, _, _ = self.report("--steps", "900", "--kernel-us", "100", options=["--delay", "0.3", "--duration", "0.4"])
        wall = report["devices"][0]["wall_ns"]
        self.assertLess(wall, 0.45e9)
        self.assertGreater(wall, 0.2e9)

    def test_refusals_name_cause_and_remedy(self):
        cases = [((), {"CUDA_INJECTION64_PATH": "/opt/nsys.so"}, 2, ["/opt/nsys.so", "unset it"]),
                 (("--library", "/no/such.so"), {}, 2, ["--library /no/such.so", "libsaturate_capture.so"]),
                 (("--keep", os.path.dirname(WATCHED)), {}, 2, ["not an empty folder"]),
                 (("--cupti", "/no/libcupti.so"), {}, 2, ["--cupti /no/libcupti.so", "the program's own"]),
                 (("--cupti", __file__), {}, 2, [__file__, "is no library"]),
                 (("--output", "/no/report.html"), {}, 1, ["/no/report.html", "write"]),
                 (("--output", self.folder.name), {}, 2, ["is a folder"]),
                 (("--cupti", PROGRAM), {}, 0, [PROGRAM, "nothing was captured"])]  # a library that is not CUPTI
        for options, environment, code, says in cases:
            got, _, err = doctor(*options, environment=environment)
            self.assertEqual(got, code, err)
            for text in says:
                self.assertIn(text, err)
        kept = os.path.join(self.folder.name, "kept")
        self.assertEqual(doctor("--keep", kept, "--cupti", "/no/libcupti.so")[0], 2)
        self.assertFalse(os.path.exists(kept))
        self.assertIn("started CUDA in no process", doctor(watch=["--no-cuda"])[2])
        done = subprocess.run([PROGRAM, "doctor", "--", "/no/such/program"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot run /no/such/program", done.stderr)
        done = subprocess.run([PROGRAM, "doctor", "--"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no command after --", done.stderr)

    def test_a_process_that_goes_on_is_told(self):
        done = subprocess.run([PROGRAM, "doctor", "--", "sh", "-c", f"{WATCHED} --seconds 2 >&- & sleep 0.7; exit 4"],
                              capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 4)
        self.assertRegex(done.stderr, r"process \d+ goes on although the command has ended")
        # Ended before the command, and waited for by nobody.
        self.assertNotIn("goes on", subprocess.run([PROGRAM, "doctor", "--", "sh", "-c", f"{WATCHED} --steps 20 & exec sleep 1"],
                                                   capture_output=True, text=True, env=ENVIRONMENT).stderr)

    def test_a_report_that_fails_leaves_the_capture(self):
        environment = {"TMPDIR": self.folder.name}
        code, _, err = doctor("--step-ms", "1000", environment=environment, watch=["--steps", "60"])
        self.assertEqual(code, 0)
        self.assertIn("without the profiler", err)
        kept = os.path.join(self.folder.name, os.listdir(self.folder.name)[0])
        self.assertIn("saturate doctor " + kept, err)
        self.assertEqual(subprocess.run([PROGRAM, "doctor", kept], capture_output=True).returncode, 0)

    def test_closed_standard_streams_do_not_end_in_a_capture(self):
        keep = os.path.join(self.folder.name, "kept")
        done = subprocess.run(["sh", "-c", f"exec 1>&- 2>&-; exec {PROGRAM} doctor --keep {keep} -- {WATCHED} --steps 60"],
                              env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0)
        again = subprocess.run([PROGRAM, "doctor", keep, "--format", "json"], capture_output=True, text=True)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertGreater(steps(json.loads(again.stdout)), 50)

    def test_nothing_is_left_behind(self):
        environment = {"TMPDIR": self.folder.name}
        doctor(environment=environment, watch=["--steps", "20"])
        doctor(environment=environment, watch=["--end", "abort"])
        self.assertEqual(os.listdir(self.folder.name), [])


if __name__ == "__main__":
    unittest.main()
