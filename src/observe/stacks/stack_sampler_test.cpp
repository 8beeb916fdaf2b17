// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/stack_sampler.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>

#include "base/testing/temp_folder.h"
#include "observe/analyse/stack_words.h"
#include "observe/stacks/python_process.h"
#include "observe/stacks/stack_thread.h"
#include "observe/testing/pythons.h"

namespace saturate::observe {
namespace {

using saturate::testing::Interpreter;
using saturate::testing::TempFolder;

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// A Python program that runs until the object goes.
class Program {
 public:
  Program(const std::string& python, const std::string& text, const char* argument = "program.py") {
    std::ofstream(folder_ / "program.py") << text;
    const std::string path = folder_ / "program.py";
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      if (chdir(folder_.path().c_str()) == 0)
        execl(python.c_str(), python.c_str(), argument, nullptr);
      _exit(127);
    }
  }
  ~Program() {
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  std::string path(const char* file) const { return folder_ / file; }

  // Waits for the file that it makes when it is under way.
  void wait_for_start() const {
    for (int i = 0; i < 2000 && access((folder_ / "started").c_str(), F_OK) != 0; ++i)
      usleep(5'000);
  }

 private:
  TempFolder folder_;
  pid_t pid_ = -1;
};

constexpr const char* kStarted = "\nopen('started', 'w').close()\n";

Trace sampled(const Program& program, int samples) {
  program.wait_for_start();
  StackSampler sampler(program.pid(), now_ns);
  Trace trace;
  for (int i = 0; i < samples; ++i) {
    sampler.sample();
    usleep(2'000);
  }
  sampler.take(trace);
  return trace;
}

using Match = std::function<bool(const HostSample&)>;
double share(const Trace& t, const Match& of, const Match& which) {
  double all = 0, some = 0;
  for (const HostSample& s : t.samples) {
    if (!of(s)) continue;
    all += s.count;
    if (which(s)) some += s.count;
  }
  return all > 0 ? some / all : 0;
}

// Without the native code that a line called.
uint32_t python_part(const Trace& t, uint32_t stack) {
  return is_native_file(t.names[t.stacks[stack].file]) ? t.stacks[stack].caller : stack;
}

bool is_at(const Trace& t, uint32_t stack, const std::string& function, uint32_t line) {
  if (stack != kNoStack) stack = python_part(t, stack);
  if (stack == kNoStack) return false;
  const StackNode& n = t.stacks[stack];
  return t.names[n.function].ends_with(function) && n.line == line &&
         t.names[n.file].ends_with("program.py");
}

class EachPython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (pythons_.empty()) GTEST_SKIP() << "no Python 3.9 to 3.15 on this machine";
  }
  const std::vector<Interpreter> pythons_ = testing::interpreters();
};

TEST_F(EachPython, TheHotLineIsNamed) {
  for (const Interpreter& python : pythons_) {
    const Program program(python.path, std::string("def hot():\n"
                                                   "    sorted(range(2000))\n"
                                                   "    return sum(range(100000))\n"
                                                   "def outer():\n"
                                                   "    while True: hot()\n") +
                                           kStarted + "outer()\n");
    const Trace t = sampled(program, 60);
    const auto main = [&](const HostSample& s) {
      return t.threads[s.thread] ==
             ThreadKey{static_cast<uint32_t>(program.pid()), static_cast<uint64_t>(program.pid())};
    };
    EXPECT_GT(share(t, main, [&](const HostSample& s) { return is_at(t, s.stack, "hot", 3); }), 0.6)
        << python.path;
    EXPECT_GT(share(t, main,
                    [&](const HostSample& s) {
                      const uint32_t caller = t.stacks[python_part(t, s.stack)].caller;
                      return is_at(t, caller, "outer", 5) &&
                             is_at(t, t.stacks[caller].caller, "<module>", 8);
                    }),
              0.8)  // a busy machine may keep it at its first lines for some samples
        << python.path;
    std::string text;
    for (const HostSample& s : t.samples)
      if (is_at(t, s.stack, "hot", 3)) text = t.names[t.stacks[python_part(t, s.stack)].text];
    EXPECT_EQ(text, python.minor >= 11 ? "sum(range(100000))" : "return sum(range(100000))");
  }
}

// Against what the program says of itself: through C code, generators, classes and functions in
// functions, on the first thread and on another, whose instructions may be a copy of its own.
TEST_F(EachPython, TheWholeStackIsWhatTheProgramSaysItIs) {
  for (const Interpreter& python : pythons_) {
    const Program program(
        python.path,
        "import functools, os, sys, threading, time\n"
        "def say(name):\n"
        "    rows, f = [], sys._getframe(1)\n"
        "    while f: rows.append(f'{f.f_code.co_name} {f.f_lineno}'); f = f.f_back\n"
        "    with open(name + '.part', 'w') as f: f.write('\\n'.join(rows))\n"
        "    os.rename(name + '.part', name)\n"
        "    time.sleep(1000)\n"
        "class Data:\n"
        "    def __getitem__(self, name):\n"
        "        def inner(x): say(name)\n"
        "        return list(map(inner,\n"
        "                        (1, 2)))\n"
        "def each(name):\n"
        "    for i in range(3):\n"
        "        yield sorted([1, 2], key=lambda k:\n"
        "                     Data()[name])\n"
        "def warm(n): return sum(k * 2 for k in range(n))\n"
        "def run(name):\n"
        "    for i in range(3000): warm(10)\n"
        "    functools.reduce(lambda a, b: next(each(name)), (1, 2, 3))\n"
        "threading.Thread(target=run, args=('second',), daemon=True).start()\n"
        "run('first')\n");
    std::string problem;
    std::unique_ptr<PythonProcess> process;
    for (const char* name : {"first", "second"})
      for (int i = 0; i < 2000 && access(program.path(name).c_str(), F_OK) != 0; ++i) usleep(5'000);
    usleep(20'000);  // until it sleeps
    process = PythonProcess::attach(program.pid(), problem);
    ASSERT_NE(process, nullptr) << python.path << problem;
    std::vector<PythonThread> threads;
    ASSERT_TRUE(process->read_threads(threads));
    ASSERT_EQ(threads.size(), 2u) << python.path;
    for (const PythonThread& thread : threads) {
      const char* name = thread.thread == program.pid() ? "first" : "second";
      std::vector<std::string> said, read;
      std::ifstream in(program.path(name));
      for (std::string row; std::getline(in, row);) said.push_back(row);
      std::vector<PythonPlace*> stack;
      process->read_stack(thread, stack);
      ASSERT_FALSE(stack.empty()) << python.path;
      EXPECT_TRUE(stack[0]->function.ends_with("say") && stack[0]->at.line == 7)
          << python.path << " " << stack[0]->function << ":" << stack[0]->at.line;
      for (size_t i = 1; i < stack.size(); ++i) {
        const std::string& function = stack[i]->function;
        read.push_back(function.substr(function.rfind('.') + 1) + " " +
                       std::to_string(stack[i]->at.line));
      }
      ASSERT_GE(said.size(), 7u) << python.path;
      EXPECT_EQ(read, said) << python.path << " " << name;
    }
  }
}

TEST_F(EachPython, WhoHoldsTheLockIsNamed) {
  for (const Interpreter& python : pythons_) {
    if (!python.has_lock) continue;
    const Program program(python.path,
                          "import threading, time\n"
                          "def hog():\n"
                          "    while True: sum(range(20000))\n"
                          "threading.Thread(target=hog, daemon=True).start()\n"
                          "def victim():\n"
                          "    time.sleep(0.001)\n"
                          "    open('started', 'w').close()\n"
                          "    while True: time.sleep(0.0001)\n"
                          "victim()\n");
    // Less than all the time where other programs keep both from a core: then more samples.
    double waiting = 0, named = 0;
    for (int samples = 50; samples <= 200 && (waiting <= 0.15 || named <= 0.8); samples *= 2) {
      const Trace t = sampled(program, samples);
      const auto main = [&](const HostSample& s) {
        return t.threads[s.thread].thread == static_cast<uint64_t>(program.pid());
      };
      waiting = share(t, main, [](const HostSample& s) { return s.state == HostState::lock; });
      const auto waits = [&](const HostSample& s) {
        return main(s) && s.state == HostState::lock && s.holder_stack != kNoStack;
      };
      named = share(t, waits, [&](const HostSample& s) {
        return is_at(t, s.stack, "victim", 8) && is_at(t, s.holder_stack, "hog", 3) &&
               s.holder != s.thread;
      });
    }
    EXPECT_GT(waiting, 0.15) << python.path;
    EXPECT_GT(named, 0.8) << python.path;
  }
}

TEST_F(EachPython, AThreadInAnotherInterpreterIsThereOnce) {
  for (const Interpreter& python : pythons_) {
    const Program program(python.path,
                          "try: import _interpreters as x\n"
                          "except ImportError: import _xxsubinterpreters as x\n"
                          "x.run_string(x.create(), '''def inner():\n"
                          "    while True: sum(range(20000))\n"
                          "open('started', 'w').close()\n"
                          "inner()''')\n");
    constexpr int kSamples = 40;
    const Trace t = sampled(program, kSamples);
    int64_t all = 0, inner = 0;
    for (const HostSample& s : t.samples) {
      all += s.count;
      const StackNode& n = t.stacks[python_part(t, s.stack)];
      if (t.names[n.function] == "inner" && n.line == 2) inner += s.count;
    }
    EXPECT_GT(all, kSamples / 2) << python.path;
    EXPECT_LE(all, kSamples) << python.path;
    EXPECT_GT(inner, all * 9 / 10) << python.path;
  }
}

TEST_F(EachPython, WorkersAreSeenAndWhatTheirParentWaitsIn) {
  for (const Interpreter& python : {pythons_.front(), pythons_.back()}) {
    const Program program(python.path,
                          std::string("import multiprocessing, os\n"
                                      "def work(pipe):\n"
                                      "    while True: sum(range(3000000))\n"
                                      "context = multiprocessing.get_context('fork')\n"
                                      "a, b = context.Pipe()\n"
                                      "context.Process(target=work, args=(b,)).start()\n") +
                              kStarted + "a.recv()\n");
    const Trace t = sampled(program, 40);
    const auto parent = [&](const HostSample& s) {
      return t.threads[s.thread].process == static_cast<uint32_t>(program.pid());
    };
    EXPECT_GT(share(t, std::not_fn(parent),
                    [&](const HostSample& s) { return is_at(t, s.stack, "work", 3); }),
              0.9)
        << python.path;
    EXPECT_GT(share(t, parent,
                    [&](const HostSample& s) {
                      return s.state == HostState::blocked && t.names[s.wait] == "read";
                    }),
              0.9)
        << python.path;
    ASSERT_EQ(t.parents.size(), 1u) << python.path;
    EXPECT_EQ(t.parents.begin()->second, static_cast<uint32_t>(program.pid()));
  }
}

// Threads that come and go, deep recursion, generators, exceptions, processes that end and exec:
// nothing crashes, and stacks are those of the program.
TEST_F(EachPython, ThingsThatChangeWhileTheyAreRead) {
  for (const Interpreter& python : pythons_) {
    const Program program(
        python.path,
        std::string("import threading, os, sys, warnings\n"
                    "warnings.simplefilter('ignore')\n"
                    "sys.setrecursionlimit(100000)\n"
                    "threading.stack_size(64 << 20)\n"
                    "def deep(n): return n and deep(n - 1) + 1\n"
                    "def gen(n):\n"
                    "    for i in range(n): yield (x * i for x in range(3))\n"
                    "def churn():\n"
                    "    while True:\n"
                    "        for g in gen(100): list(g)\n"
                    "        exec(compile('def new(): return 1\\nnew()', 'made', 'exec'), {})\n"
                    "def spawn():\n"
                    "    while True:\n"
                    "        t = threading.Thread(target=deep, args=(3000,)); t.start(); t.join()\n"
                    "def fork():\n"
                    "    while True:\n"
                    "        p = os.fork()\n"
                    "        if p == 0: os.execl('/bin/true', 'true')\n"
                    "        os.waitpid(p, 0)\n"
                    "for f in (churn, spawn, fork): threading.Thread(target=f).start()\n") +
            kStarted + "import time\ntime.sleep(1000)\n");
    const Trace t = sampled(program, 80);
    EXPECT_GT(t.samples.size(), 4u) << python.path;  // few where cores are short
    EXPECT_GT(share(
                  t, [](const HostSample&) { return true; },
                  [&](const HostSample& s) {
                    const uint32_t frame = python_part(t, s.stack);
                    if (frame == kNoStack) return true;  // of the programs that were started
                    const std::string& file = t.names[t.stacks[frame].file];
                    return file.ends_with(".py") || file == "made" || file[0] == '<';
                  }),
              0.97)
        << python.path;
  }
}

// Functions that take a microsecond are gone when their frame is read; the stack then is read again.
TEST_F(EachPython, StacksReachTheLineThatBeganThem) {
  for (const Interpreter& python : pythons_) {
    const Program program(python.path,
                          std::string("class Layer:\n"
                                      "    def __init__(self, inner): self.inner = inner\n"
                                      "    def __call__(self, x): return self.step(x)\n"
                                      "    def step(self, x):\n"
                                      "        x = self.one(x)\n"
                                      "        return self.two(self.inner(x))\n"
                                      "    def one(self, x): return x + 1\n"
                                      "    def two(self, x): return x - 1\n"
                                      "def last(x): return x\n"
                                      "model = last\n"
                                      "for i in range(12): model = Layer(model)\n") +
                              kStarted + "while True: model(1)\n");
    const Trace t = sampled(program, 400);
    const double whole = share(
        t, [](const HostSample&) { return true; },
        [&](const HostSample& s) {
          uint32_t frame = s.stack;
          while (t.stacks[frame].caller != kNoStack) frame = t.stacks[frame].caller;
          return is_at(t, frame, "<module>", 14);
        });
    // Before 3.11 a frame is an object of its own, read by a call of its own where it is new.
    EXPECT_GT(whole, python.minor >= 11 ? 0.9 : 0.7) << python.path;
  }
}

// What lies where a frame was may be anything: here each word of it is the highest address.
TEST_F(EachPython, AFrameThatIsGoneEndsTheStack) {
  for (const Interpreter& python : pythons_) {
    const Program program(python.path,
                          "words = b'\\xff' * 512\n"  // they follow four words of the object
                          "with open('address', 'w') as f: f.write(str(id(words) + 32))\n" +
                              std::string(kStarted) + "import time\ntime.sleep(1000)\n");
    program.wait_for_start();
    std::string problem;
    std::unique_ptr<PythonProcess> process;
    for (int i = 0; i < 100 && process == nullptr; ++i) {
      process = PythonProcess::attach(program.pid(), problem);
      usleep(10'000);
    }
    ASSERT_NE(process, nullptr) << python.path << problem;
    uint64_t address = 0;
    std::ifstream(program.path("address")) >> address;
    ASSERT_GT(address, 32u);
    std::vector<PythonPlace*> stack;
    process->read_stack({.thread = program.pid(), .frame = address}, stack);
    EXPECT_TRUE(stack.empty()) << python.path;
  }
}

TEST_F(EachPython, AProcessThatEndsAndOneWithoutPython) {
  {
    const Program program("/bin/sleep", "", "100");
    StackSampler sampler(program.pid(), now_ns);
    for (int i = 0; i < 5; ++i) sampler.sample();
    ASSERT_GE(sampler.notes().size(), 1u);
    EXPECT_NE(sampler.notes()[0].find("no process"), std::string::npos);
  }
  const Program program(pythons_[0].path, std::string(kStarted) + "import os\nos._exit(0)\n");
  const Trace t = sampled(program, 40);
  for (const HostSample& s : t.samples) EXPECT_LE(s.start_ns, s.end_ns);
}

// The promise is at most 2% of a core.
TEST_F(EachPython, TheThreadKeepsItsBudget) {
  const Program program(
      pythons_[0].path,
      std::string("import threading\n"
                  "def deep(n):\n"
                  "    if n: deep(n - 1)\n"
                  "    while True: sum(range(1000))\n"
                  "for i in range(6): threading.Thread(target=deep, args=(60,)).start()\n") +
          kStarted);
  program.wait_for_start();
  timespec before{}, after{};
  Trace trace;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  const int64_t from = now_ns();
  {
    StackThread thread(program.pid(), now_ns);
    usleep(1'000'000);
    thread.take(trace);
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double cpu = static_cast<double>(after.tv_sec - before.tv_sec) +
                     1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(cpu / (1e-9 * static_cast<double>(now_ns() - from)),
            0.06);  // the start is not averaged
  EXPECT_GT(trace.samples.size(), 6u);
}

}  // namespace
}  // namespace saturate::observe
