#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`saturate top`, `check` and `doctor --pid` as a user meets them, with a driver that answers from a file.
Arguments: the program, the fake driver."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.request

PROGRAM, DRIVER = sys.argv.pop(1), sys.argv.pop(1)
SPIN = "while True: pass"
GPU = {"name": "Fake H", "utilization": 45, "memory": 8 << 30, "power": 250000, "power_limit": 700000,
       "temperature": 50, "sm_clock": 1980, "max_clock": 1980, "reasons": 4, "gpm": {"2": 40.5, "5": 20, "10": 10}}


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.children = []
        self.addCleanup(self.end_children)

    def end_children(self):
        for child in self.children:
            child.kill()
            child.wait()

    def worker(self, code=SPIN):
        """A process that the program takes for one on a GPU: it has something called libcuda.so mapped."""
        library = os.path.join(self.folder, "libcuda.so.1")
        with open(library, "wb") as out:
            out.write(bytes(4096))
        start = (f"import mmap; f = open({library!r}, 'r+b'); m = mmap.mmap(f.fileno(), 4096)\n"
                 f"print('up', flush=True)\n{code}")
        child = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        self.addCleanup(child.stdout.close)
        self.assertEqual(child.stdout.readline(), "up\n")
        return child

    def environment(self, **gpu):
        """For one fake GPU with these values over the usual ones."""
        path = os.path.join(self.folder, "nvml.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"driver": "580.1", "cuda": 13000, "gpus": [{**GPU, **gpu}]}, out)
        return {**os.environ, "SATURATE_NVML": DRIVER, "SATURATE_FAKE_NVML": path, "LC_ALL": "C.UTF-8", "TERM": "xterm"}

    def run_program(self, *arguments, environment=None, code=0):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60,
                              env=environment or self.environment())
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout, done.stderr


class Once(Machine):
    def test_once_shows_gpus_processes_and_why(self):
        child = self.worker()
        out, err = self.run_program("top", "--once", environment=self.environment(
            processes=[{"pid": child.pid, "memory": 1 << 30}]))
        self.assertEqual(err, "")
        self.assertNotIn("\x1b", out)
        for part in ["Fake H", " 45%", "SM 40%", "power cap", str(child.pid), "1.0 GiB"]:
            self.assertIn(part, out)
        self.assertRegex(out, rf"(?m)^ +{child.pid} (launch-bound\?|cpu-starved): GPU 45%; ")  # the latter when cores are busy

    def test_json_has_rates_and_nulls(self):
        child = self.worker()
        out, _ = self.run_program("top", "--json", environment=self.environment(
            processes=[{"pid": child.pid}], power={"error": 3}))
        data = json.loads(out)
        gpu, process = data["gpus"][0], data["processes"][0]
        self.assertEqual(gpu["utilisation_percent"], 45)
        self.assertEqual(gpu["sm_active_percent"], 40.5)
        self.assertIsNone(gpu["power_w"])
        self.assertIsNone(gpu["nvlink_sent_bytes_per_s"])
        self.assertEqual(process["pid"], child.pid)
        self.assertIsNone(process["gpus"][0]["memory_bytes"])
        self.assertGreater(process["cpu_cores"], 0.02)  # it spins, on a machine that may be busy
        self.assertIn(SPIN, process["command"])

    def test_workers_are_descendants(self):
        child = self.worker("import subprocess, sys; w = subprocess.Popen([sys.executable, '-c', 'import time; "
                            "time.sleep(99)']); w.wait()")
        environment = self.environment(processes=[{"pid": child.pid}])
        time.sleep(0.3)
        data = json.loads(self.run_program("top", "--json", environment=environment)[0])
        self.assertEqual([p["worker"] for p in data["processes"]], [False, True])
        self.assertEqual(data["processes"][0]["workers"], 1)
        os.kill(data["processes"][1]["pid"], signal.SIGKILL)

    def test_filters(self):
        one, two = self.worker(), self.worker()
        environment = self.environment(processes=[{"pid": one.pid}, {"pid": two.pid}])
        data = json.loads(self.run_program("top", "--json", "--pid", str(two.pid), environment=environment)[0])
        self.assertEqual([p["pid"] for p in data["processes"]], [two.pid])
        data = json.loads(self.run_program("top", "--json", "--filter", str(one.pid), environment=environment)[0])
        self.assertEqual([p["pid"] for p in data["processes"]], [one.pid])
        data = json.loads(self.run_program("top", "--json", "--user", "nobody-of-that-name", environment=environment)[0])
        self.assertEqual(data["processes"], [])
        self.assertIn("there is no GPU 1", self.run_program("top", "--once", "--gpu", "1", code=2)[1])

    def test_follow_is_a_line_each_interval_and_sigpipe_or_signals_end_it(self):
        run = subprocess.Popen([PROGRAM, "top", "--json", "--follow", "--interval", "0.25"], stdout=subprocess.PIPE,
                               text=True, env=self.environment())
        times = [json.loads(run.stdout.readline())["time_unix_s"] for _ in range(3)]
        self.assertGreater(times[2] - times[0], 0.4)
        run.stdout.close()
        self.assertNotEqual(run.wait(timeout=10), 0)

    def test_without_a_driver_it_says_so(self):
        environment = {**self.environment(), "SATURATE_NVML": "/nowhere/libnvidia-ml.so.1"}
        out, _ = self.run_program("top", "--once", environment=environment)
        self.assertIn("no GPU: ", out)
        self.assertIn("no NVIDIA driver", out)
        self.assertIsNotNone(json.loads(self.run_program("top", "--json", environment=environment)[0])["no_gpu"])

    def test_lost_gpu(self):
        data = json.loads(self.run_program("top", "--json", environment=self.environment(utilization={"error": 15}))[0])
        self.assertIn("lost", data["gpus"][0]["lost"])
        self.assertIsNone(data["gpus"][0]["temperature_c"])

    def test_wrong_flags(self):
        self.assertIn("did you mean '--interval'", self.run_program("top", "--intervall", "1", code=2)[1])
        self.assertIn("address", self.run_program("top", "--prometheus", "here", code=2)[1])
        self.run_program("top", "--interval", "0", code=2)
        self.run_program("top", "--prometheus", ":0", "--json", code=2)
        self.assertIn("/nodir", self.run_program("top", "--once", "--proc", "/nodir", code=2)[1])
        self.assertIn("needs", self.run_program("top", "--follow", code=2)[1].lower().replace("requires", "needs"))


@unittest.skipUnless(shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout,
                     "no GPU here")
class RealDriver(Machine):
    def test_agrees_with_nvidia_smi(self):
        keys = ["name", "uuid", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "temperature.gpu"]
        rows = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(keys), "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True).stdout.strip().splitlines()
        data = json.loads(self.run_program("top", "--json", environment=dict(os.environ))[0])
        self.assertEqual(len(data["gpus"]), len(rows))
        for gpu, row in zip(data["gpus"], rows):
            name, uuid, driver, memory, power, clock, temperature = [v.strip() for v in row.split(",")]
            self.assertEqual((gpu["name"], gpu["uuid"], data["driver"]), (name, uuid, driver))
            self.assertEqual(gpu["memory_total_bytes"] // 2**20, int(memory))
            for ours, theirs, tolerance in [("power_limit_w", power, 0.01), ("sm_clock_max_mhz", clock, 0),
                                            ("temperature_c", temperature, 10)]:
                if theirs.startswith("["):  # [N/A]
                    self.assertIsNone(gpu[ours])
                else:
                    self.assertAlmostEqual(gpu[ours], float(theirs), delta=tolerance)


class Live(Machine):
    """On a pseudo-terminal."""

    def start(self, *arguments, size=(30, 120), environment=None):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.master, self.slave, self.screen = master, slave, ""
        self.top = subprocess.Popen([PROGRAM, "top", "--interval", "0.25", *arguments], stdin=slave, stdout=slave,
                                    stderr=subprocess.PIPE, env=environment or self.environment(),
                                    start_new_session=True)
        self.children.append(self.top)
        self.addCleanup(self.top.stderr.close)
        self.addCleanup(os.close, master)
        self.addCleanup(os.close, slave)

    def until(self, pattern, seconds=10):
        end, seen = time.monotonic() + seconds, ""
        while not re.search(pattern, seen):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], max(left, 0))[0]:
                self.fail(f"no {pattern!r} in {seen[-3000:]!r}")
            seen += os.read(self.master, 65536).decode("utf-8", "replace")
        self.screen += seen
        return seen

    def type(self, text):
        os.write(self.master, text.encode())

    def assert_restored(self):
        while select.select([self.master], [], [], 0.2)[0]:
            self.screen += os.read(self.master, 65536).decode("utf-8", "replace")
        self.assertTrue(self.screen.endswith("\x1b[?1049l"), repr(self.screen[-80:]))
        self.assertIn("\x1b[?25h", self.screen[-80:])
        self.assertEqual(termios.tcgetattr(self.slave), self.before)

    def test_shows_helps_and_quits(self):
        self.start()
        self.until("Fake H")
        self.until("[\u2801-\u28ff]")  # the history, in braille
        self.type("h")
        self.until("this help")
        self.type("x")
        self.until("saturate top")
        self.type("q")
        self.assertEqual(self.top.wait(timeout=10), 0)
        self.assert_restored()

    def test_ascii_without_colour(self):
        self.start("--ascii", "--no-color")
        self.until("Fake H")
        self.until("Fake H")
        self.type("q")
        self.top.wait(timeout=10)
        self.assert_restored()
        self.assertTrue(self.screen.isascii())
        self.assertNotRegex(self.screen, r"\x1b\[\d*[1-9]\d*m")

    def test_every_signal_restores_the_terminal(self):
        for number, code in [(signal.SIGINT, 0), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1),
                             (signal.SIGQUIT, 128 + 3), (signal.SIGSEGV, -signal.SIGSEGV),
                             (signal.SIGABRT, -signal.SIGABRT)]:
            self.start()
            self.until("Fake H")
            self.top.send_signal(number)
            self.assertEqual(self.top.wait(timeout=10), code, number)
            self.assert_restored()

    def test_small_terminals_and_resizing(self):
        self.start(size=(4, 20))
        self.until("saturate top")
        for size in [(1, 1), (2, 200), (50, 3), (30, 100)]:
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            self.top.send_signal(signal.SIGWINCH)
            time.sleep(0.1)
        self.until("Fake H")
        self.type("\x1b[21~")  # F10
        self.assertEqual(self.top.wait(timeout=10), 0)
        self.assert_restored()

    def test_kill_with_confirmation(self):
        child = self.worker()
        self.start(environment=self.environment(processes=[{"pid": child.pid}]))
        self.until(str(child.pid))
        self.type("\x1b[B")
        self.until("launch-bound|unknown|waiting")
        self.type("Tn")
        self.until("nothing was killed")
        self.assertIsNone(child.poll())
        self.type("k")
        self.until("signal: t TERM")
        self.type("t")
        self.until(f"send signal 15 to process {child.pid}")
        self.type("y")
        self.assertEqual(child.wait(timeout=10), -signal.SIGTERM)
        self.until("signal 15 sent|is gone|not visible")
        self.type("q")
        self.assertEqual(self.top.wait(timeout=10), 0)

    def test_readonly(self):
        child = self.worker()
        self.start("--readonly", environment=self.environment(processes=[{"pid": child.pid}]))
        self.until(str(child.pid))
        self.type("\x1b[BT")
        self.until("read-only")
        self.type("q")
        self.top.wait(timeout=10)


class Prometheus(Machine):
    def test_serves_on_loopback_until_a_signal(self):
        child = self.worker()
        run = subprocess.Popen([PROGRAM, "top", "--prometheus", ":0", "--interval", "0.25"], stderr=subprocess.PIPE,
                               text=True, env=self.environment(processes=[{"pid": child.pid, "memory": 77}]))
        self.children.append(run)
        self.addCleanup(run.stderr.close)
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", run.stderr.readline()).group()
        for _ in range(40):
            with urllib.request.urlopen(address, timeout=5) as answer:
                self.assertEqual(answer.headers.get_content_type(), "text/plain")
                text = answer.read().decode()
            if "saturate_process_cpu_cores" in text:
                break
            time.sleep(0.1)
        self.assertIn("saturate_gpu_utilisation_ratio{gpu=\"0\",name=\"Fake H\",uuid=\"GPU-fake\"} 0.45\n", text)
        self.assertRegex(text, rf'saturate_process_gpu_memory_bytes{{pid="{child.pid}",.*}} 77\n')
        line = r'[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)*\})? [-+0-9.e]+'
        for each in text.splitlines():
            self.assertRegex(each, rf"^(# (HELP|TYPE) [a-z_]+ .+|{line})$")
        other = subprocess.run([PROGRAM, "top", "--prometheus", address.split(":")[2].split("/")[0]],
                               capture_output=True, text=True, timeout=10, env=self.environment())
        self.assertEqual(other.returncode, 1)
        self.assertIn("another port", other.stderr)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(timeout=10), 0)


class Check(Machine):
    def test_lines_and_exit_codes(self):
        out, _ = self.run_program("check")
        self.assertRegex(out, r"(?m)^OK    driver +580\.1, runs CUDA up to 13\.0$")
        self.assertRegex(out, r"(?m)^OK    GPU 0 GPM")
        self.assertRegex(out, r"(?m)^\d+ OK, \d+ WARN, 0 FAIL, \d+ SKIP$")
        data = json.loads(self.run_program("check", "--json")[0])
        self.assertTrue(data["ready"])
        lost = self.environment(utilization={"error": 15})
        self.assertFalse(json.loads(self.run_program("check", "--json", environment=lost, code=1)[0])["ready"])
        none = {**lost, "SATURATE_NVML": "/nowhere.so"}
        self.assertRegex(self.run_program("check", environment=none, code=1)[0], r"(?m)^FAIL  driver")
        owned = {**self.environment(), "CUDA_INJECTION64_PATH": "/opt/other.so"}
        self.assertRegex(self.run_program("check", environment=owned)[0], r"(?m)^WARN  CUPTI owner .*/opt/other.so")


class DoctorPid(Machine):
    def test_thread_that_runs_beside_a_half_idle_gpu(self):
        child = self.worker()
        environment = self.environment(processes=[{"pid": child.pid, "memory": 1 << 30}])
        out, _ = self.run_program("doctor", "--pid", str(child.pid), "--duration", "1.5", environment=environment)
        self.assertRegex(out, r"VERDICT  (launch-bound\?|cpu-starved) ")  # the latter on a busy machine
        for part in ["SM active", "Busiest of 1 threads", "Not known from outside", SPIN]:
            self.assertIn(part, out)
        data = json.loads(self.run_program("doctor", "--pid", str(child.pid), "--duration", "1", "--format", "json",
                                           environment=environment)[0])
        self.assertEqual(data["utilisation_percent"]["mean"], 45)
        thread = data["busiest_threads"][0]
        self.assertGreater(thread["running_share"] + thread["ready_share"], 0.8)

    def test_process_that_sleeps_and_ends(self):
        child = self.worker("import time; time.sleep(1)")
        out, _ = self.run_program("doctor", "--pid", str(child.pid), "--duration", "10",
                                  environment=self.environment(processes=[{"pid": child.pid}]))
        self.assertIn("VERDICT  waiting", out)
        self.assertIn("(ended meanwhile)", out)

    def test_mistakes(self):
        self.assertIn("no process", self.run_program("doctor", "--pid", "4194303", code=2)[1])
        self.assertIn("one of the three", self.run_program("doctor", "x.json", "--pid", str(os.getpid()), code=2)[1])
        self.assertIn("html", self.run_program("doctor", "--pid", str(os.getpid()), "--format", "html", code=2)[1])
        self.run_program("doctor", "--duration", "3", code=2)


if __name__ == "__main__":
    unittest.main()
