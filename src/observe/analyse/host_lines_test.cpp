// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/host_lines.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "observe/analyse/stack_words.h"
#include "observe/report/diagnosis.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/testing/simulator.h"
#include "observe/testing/stacks.h"

namespace saturate::observe {
namespace {

using testing::stack_of;

constexpr int64_t kMs = 1'000'000;
constexpr const char* kTorch = "/opt/lib/python3.11/site-packages/torch/";

// 30 steps: 6 ms of host code, then 4 ms on the device while the host waits for it.
Trace program() {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.host(6 * kMs);
    s.kernel("sm90_gemm", 4 * kMs);
    s.synchronize();
  }
  return s.take();
}

// One sample each millisecond: `idle` while the device waits, `busy` while it works.
void add_samples(Trace& t, uint32_t thread, uint32_t idle, uint32_t busy, HostState state = {},
                 uint32_t holder = 0, uint32_t holder_stack = kNoStack) {
  for (int64_t at = t.calls.front().start_ns - 6 * kMs; at < t.ops.back().end_ns; at += kMs) {
    bool works = false;
    for (const DeviceOp& op : t.ops) works = works || (at >= op.start_ns && at < op.end_ns);
    HostSample s{at, at, 1, thread, works ? busy : idle, 0, holder, holder_stack, state};
    t.samples.push_back(s);
  }
}

TEST(HostLines, OnlyIdleTimeCounts) {
  Trace t = program();
  const uint32_t hot = stack_of(t, {{"main", "/home/a/train.py", 9, "step(x)"},
                                    {"step", "/home/a/train.py", 5, "sorted(x)"}});
  const uint32_t wait = stack_of(t, {{"main", "/home/a/train.py", 10, "loss.item()"}});
  add_samples(t, 0, hot, wait);
  const Diagnosis g = diagnose(*make_capture(t), "x");
  const HostLines& h = g.device().host_lines;
  ASSERT_EQ(h.lines.size(), 1u) << render_text(g);
  EXPECT_EQ(h.lines[0].at.where(), "train.py:5");
  EXPECT_EQ(h.lines[0].at.text, "sorted(x)");
  EXPECT_EQ(h.lines[0].caller.where(), "train.py:9");
  EXPECT_EQ(h.lines[0].thread, "main thread");
  EXPECT_EQ(h.lines[0].leaf, Leaf::after_sync);
  EXPECT_GT(h.lines[0].share, 0.99);
  EXPECT_NEAR(h.lines[0].ns, static_cast<double>(g.device().budget[Leaf::after_sync]),
              0.01 * h.idle_ns);
  EXPECT_NE(g.verdict.why.find("sorted(x) in train.py:5 (step)"), std::string::npos)
      << g.verdict.why;
  EXPECT_NE(render_text(g).find("Lines of the program that device 0 waited for"),
            std::string::npos);
  EXPECT_NE(render_json(g).find("\"file\": \"train.py\""), std::string::npos);
}

// Between launches a host is in its model as often as in the batch that it makes, in one piece.
TEST(HostLines, LongStretchesHaveLinesOfTheirOwn) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.host(4 * kMs);
    for (int k = 0; k < 50; ++k) {
      s.host(80'000);
      s.kernel("sm90_gemm", 10'000);
    }
    s.synchronize();
  }
  Trace t = s.take();
  const uint32_t batch = stack_of(t, {{"get_batch", "/a.py", 1}}),
                 forward = stack_of(t, {{"forward", "/a.py", 2}});
  std::vector<int64_t> launches;
  for (const HostCall& c : t.calls) launches.push_back(c.start_ns);
  for (int64_t at = launches.front() - 3 * kMs; at < launches.back(); at += 250'000) {
    const auto next = std::lower_bound(launches.begin(), launches.end(), at);
    const bool soon = next != launches.begin() && *next - *std::prev(next) < kMs;
    t.samples.push_back({at, at, 1, 0, soon ? forward : batch});
  }
  const HostLines h = diagnose(*make_capture(t), "x").device().host_lines;
  ASSERT_EQ(h.lines.size(), 2u);
  EXPECT_NEAR(h.lines[0].share, 0.5, 0.1);
  ASSERT_EQ(h.long_lines.size(), 1u);
  EXPECT_EQ(h.long_lines[0].at.where(), "a.py:1");
  EXPECT_NEAR(static_cast<double>(h.long_samples), 0.5 * static_cast<double>(h.samples),
              0.1 * static_cast<double>(h.samples));
}

// Two lines; the leaf's time is known, the samples only divide it.
TEST(HostLines, SharesAreThoseOfTheSamples) {
  Trace t = program();
  const uint32_t a = stack_of(t, {{"f", "/a.py", 1}}), b = stack_of(t, {{"g", "/a.py", 2}});
  add_samples(t, 0, a, a);
  size_t n = 0;
  for (HostSample& s : t.samples)
    if (n++ % 4 == 0) s.stack = b;
  const Diagnosis g = diagnose(*make_capture(t), "x");
  const HostLines& h = g.device().host_lines;
  ASSERT_EQ(h.lines.size(), 2u);
  EXPECT_NEAR(h.lines[0].share, 0.75, 0.05);
  EXPECT_NEAR(h.lines[0].share + h.lines[1].share, 1, 0.01);
}

// Autograd's thread issues, and runs no Python: the line is that of the thread which waits for it.
TEST(HostLines, AThreadWithoutPythonHasTheLineOfTheOneThatWaits) {
  Trace t = program();
  const uint32_t python = t.threads.add({0, 90});  // older than the one that issues
  const uint32_t backward = stack_of(t, {{"main", "/train.py", 7, "loss.backward()"}});
  add_samples(t, python, backward, backward);
  const Diagnosis g = diagnose(*make_capture(t), "x");
  ASSERT_EQ(g.device().host_lines.lines.size(), 1u);
  EXPECT_EQ(g.device().host_lines.lines[0].at.text, "loss.backward()");
  EXPECT_GT(g.device().host_lines.lines[0].share, 0.99);
}

// A function that does nothing but call another holds as much as that one: the inner one is meant,
// whichever of them was seen first.
TEST(HostLines, OfFunctionsThatHoldAsMuchTheInnerIsMeant) {
  for (const bool outer_first : {true, false}) {
    Trace t = program();
    if (outer_first) t.names.add("outer");
    t.names.add("inner");
    std::vector<uint32_t> stacks;
    for (uint32_t line = 20; line < 30; ++line)
      stacks.push_back(stack_of(
          t, {{"outer", "/program.py", 5, "inner(x)"}, {"inner", "/program.py", line, "x + 1"}}));
    add_samples(t, 0, stacks[0], stacks[0]);
    for (size_t i = 0; i < t.samples.size(); ++i) t.samples[i].stack = stacks[i / 3 % 10];
    const Diagnosis g = diagnose(*make_capture(t), "x");
    ASSERT_FALSE(g.device().host_lines.lines.empty());
    const HostLine& first = g.device().host_lines.lines[0];
    EXPECT_EQ(first.at.function, "inner");
    EXPECT_LT(first.share, 0.2);
    EXPECT_GT(first.function_share, 0.99);
    ASSERT_TRUE(g.verdict.line.has_value()) << g.verdict.why;
  }
}

// Of a step that waits most for its backward pass, the line to change is the model's call, whatever lines below it
// and whoever holds the lock.
TEST(HostLines, ABackwardPassIsOfTheLineThatCallsTheModel) {
  Trace t = program();
  const std::string torch = kTorch;
  const std::string module = torch + "nn/modules/module.py", graph = torch + "autograd/graph.py";
  const auto layer = [&](uint32_t line) {
    return stack_of(t, {{"main", "/train.py", 6, "model(x)"},
                        {"Module._call_impl", module.c_str(), 1790},
                        {"Model.forward", "/model.py", line, "self.layer(x)"},
                        {"Module._call_impl", module.c_str(), 1790},
                        {"Layer.forward", "/model.py", line + 20, "x + 1"}});
  };
  const uint32_t backward = stack_of(t, {{"main", "/train.py", 7, "loss.backward()"},
                                         {"_engine_run_backward", graph.c_str(), 869}});
  const uint32_t other = stack_of(t, {{"wait", "/pin.py", 3}});
  add_samples(t, 0, backward, backward);
  size_t n = 0;
  for (HostSample& s : t.samples) {
    const size_t i = n++ % 17;  // no part of a step's samples
    if (i < 9) continue;
    s.stack = layer(static_cast<uint32_t>(i - 8));
    if (i < 16) continue;
    s.state = HostState::lock;
    s.holder_stack = other;
  }
  const Diagnosis g = diagnose(*make_capture(t), "x");
  const HostLines& h = g.device().host_lines;
  EXPECT_TRUE(h.lines[0].runs_backward);
  EXPECT_NEAR(h.model_ns, h.idle_ns, 0.01 * h.idle_ns);
  EXPECT_EQ(h.lines[0].at.where(), "train.py:7");
  ASSERT_EQ(h.calls.size(), 2u);
  EXPECT_EQ(h.calls[0].at.where(), "train.py:6");
  EXPECT_NEAR(h.calls[0].share, 8.0 / 17, 0.05);
  EXPECT_NEAR(h.calls[0].share + h.calls[0].backward, 1, 0.05);
  // So is what was issued, by the same calls.
  const WorkLines& work = g.device().work_lines;
  ASSERT_FALSE(work.calls.empty());
  EXPECT_GT(work.lines.size(), work.calls.size());
  EXPECT_EQ(work.calls[0].at.where(), "train.py:6");
  ASSERT_TRUE(g.verdict.line) << g.verdict.why;
  EXPECT_EQ(g.verdict.line->at.where(), "train.py:6") << g.verdict.why;
  EXPECT_NE(g.verdict.why.find("model(x) in train.py:6 (main), with its part of the backward pass"),
            std::string::npos)
      << g.verdict.why;
}

// A program whose host waits for the device until just before the next launch: the line that issues is seen seldom, that
// of the wait often.
TEST(HostLines, WorkIsNotOfTheLineThatWaitsBeforeIt) {
  testing::Simulator s;
  for (int i = 0; i < 60; ++i) {
    s.begin_step(i);
    s.host(100'000);
    s.kernel("simulate", 4 * kMs);
    s.synchronize();
  }
  Trace t = s.take();
  const uint32_t launches = stack_of(t, {{"main", "/train.py", 6, "simulate(x)"}});
  const uint32_t waits = stack_of(t, {{"main", "/train.py", 7, "synchronize()"}});
  for (const DeviceOp& op : t.ops) {
    const int64_t call = op.start_ns - 2'500 - 4'000;
    for (const int64_t at : {op.end_ns - 300'000, op.end_ns - 200'000, call - 50'000})
      t.samples.push_back({at, at, 1, 0, at < op.start_ns ? launches : waits, 0, 0, kNoStack, {}});
  }
  std::sort(t.samples.begin(), t.samples.end(),
            [](const HostSample& a, const HostSample& b) { return a.start_ns < b.start_ns; });
  const Diagnosis g = diagnose(*make_capture(t), "x");
  const WorkLines& work = g.device().work_lines;
  ASSERT_EQ(work.lines.size(), 1u);
  EXPECT_EQ(work.lines[0].at.where(), "train.py:6");
}

TEST(HostLines, TheHolderOfTheLockIsNamed) {
  Trace t = program();
  const uint32_t main = stack_of(t, {{"main", "/train.py", 7, "model(x)"}});
  const uint32_t hog = stack_of(t, {{"hog", "/log.py", 3, "sum(range(n))"}});
  add_samples(t, 0, main, main, HostState::lock, t.threads.add({0, 200}), hog);
  const Diagnosis g = diagnose(*make_capture(t), "x");
  const HostLine& line = g.device().host_lines.lines.at(0);
  EXPECT_EQ(line.holder.where(), "log.py:3");
  EXPECT_EQ(line.holder_thread, "thread 200");
  EXPECT_NE(g.verdict.why.find("lock while thread 200 is in sum(range(n)) in log.py:3"),
            std::string::npos)
      << g.verdict.why;
}

// Where the lock is most of what the device waits for, who holds it is the line, not who waits.
TEST(HostLines, WhereTheLockIsTheCauseItsHolderIsTheLine) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    s.wait(SpanKind::gil, "interpreter lock", 6 * kMs);
    s.kernel("sm90_gemm", 4 * kMs);
    s.synchronize();
  }
  Trace t = s.take();
  const uint32_t main = stack_of(t, {{"main", "/train.py", 7, "loss.backward()"}});
  const uint32_t hog = stack_of(t, {{"hog", "/log.py", 3, "sum(range(n))"}});
  add_samples(t, 0, main, main, HostState::lock, t.threads.add({0, 200}), hog);
  const Diagnosis g = diagnose(*make_capture(t), "x");
  ASSERT_EQ(g.verdict.id, "host_bound") << g.verdict.why;
  ASSERT_TRUE(g.verdict.line.has_value()) << g.verdict.why;
  EXPECT_EQ(g.verdict.line->at.where(), "log.py:3");
  EXPECT_NE(g.verdict.why.find("holds the interpreter's lock meanwhile is sum(range(n))"),
            std::string::npos)
      << g.verdict.why;
  EXPECT_NE(g.verdict.next.find("a process of its own"), std::string::npos) << g.verdict.next;
}

TEST(HostLines, WorkersAreThoseOfTheProcessThatWaits) {
  Trace t = program();
  const std::string loader = std::string(kTorch) + "utils/data/dataloader.py";
  const uint32_t main =
      stack_of(t, {{"main", "/train.py", 7, "batch in loader"},
                   {"_BaseDataLoaderIter.__next__", loader.c_str(), 600},
                   {"_MultiProcessingDataLoaderIter._try_get_data", loader.c_str(), 900}});
  add_samples(t, 0, main, main, HostState::blocked);
  const uint32_t work = stack_of(t, {{"__getitem__", "/dataset.py", 41, "np.sort(x)"}});
  const uint32_t stranger = stack_of(t, {{"other", "/other.py", 1}});
  t.parents = {{5, 4}, {4, 0}};
  add_samples(t, t.threads.add({5, 5}), work, work);
  add_samples(t, t.threads.add({6, 6}), stranger, stranger);
  const Diagnosis g = diagnose(*make_capture(t), "x");
  const HostLines& h = g.device().host_lines;
  EXPECT_EQ(h.worker_processes, 1);
  ASSERT_EQ(h.workers.size(), 1u);
  EXPECT_EQ(h.workers[0].at.where(), "dataset.py:41");
  EXPECT_NEAR(h.workers[0].share, 1, 1e-9);
  EXPECT_EQ(h.lines[0].via, "");
  EXPECT_EQ(h.lines[0].remark, "it waits for the loader's workers");
}

// A loader with one file for two workers: what the one does that has work comes before the other's
// waiting, and threads that only serve others are no lines.
TEST(HostLines, WorkersThatWaitComeLast) {
  Trace t = program();
  const uint32_t main = stack_of(t, {{"main", "/train.py", 7, "next(batches)"}});
  add_samples(t, 0, main, main, HostState::blocked);
  const std::string worker = std::string(kTorch) + "utils/data/_utils/worker.py";
  const uint32_t work =
      stack_of(t, {{"_worker_loop", worker.c_str(), 275},
                   {"fetch", (std::string(kTorch) + "utils/data/_utils/fetch.py").c_str(), 20},
                   {"__iter__", "/stream.py", 41, "json.loads(line)"}});
  const uint32_t waits = stack_of(t, {{"_worker_loop", worker.c_str(), 275},
                                      {"poll", "/usr/lib/python3.11/selectors.py", 415}});
  const uint32_t serves = stack_of(t, {{"accept", "/usr/lib/python3.11/socket.py", 295}});
  t.parents = {{5, 4}, {6, 4}, {4, 0}};
  add_samples(t, t.threads.add({5, 5}), work, work);
  for (const uint64_t thread : {51u, 52u})
    add_samples(t, t.threads.add({5, thread}), serves, serves, HostState::blocked);
  for (int twice = 0; twice < 2; ++twice)  // two points for each of the other's
    add_samples(t, t.threads.add({6, 6}), waits, waits, HostState::blocked);
  const Diagnosis g = diagnose(*make_capture(t), "x");
  const HostLines& h = g.device().host_lines;
  EXPECT_EQ(h.worker_processes, 2);
  ASSERT_EQ(h.workers.size(), 2u);
  EXPECT_EQ(h.workers[0].at.where(), "stream.py:41");
  EXPECT_NEAR(h.workers[0].share, 1.0 / 3, 1e-9);
  EXPECT_TRUE(h.workers[1].idle_worker);
  EXPECT_EQ(h.workers[1].remark, "a loader's worker without work");
}

// The loader's own line does nothing but ask for items: it goes with the line of the item.
TEST(HostLines, WhatTheLoaderTakesToFetchIsTheItems) {
  const std::string fetch = std::string(kTorch) + "utils/data/_utils/fetch.py",
                    worker = std::string(kTorch) + "utils/data/_utils/worker.py";
  const auto first = [&](bool with_items) {
    Trace t = program();
    const uint32_t main = stack_of(t, {{"main", "/train.py", 7, "next(batches)"}});
    add_samples(t, 0, main, main, HostState::blocked);
    const uint32_t asks = stack_of(t, {{"_worker_loop", worker.c_str(), 275},
                                       {"fetch", fetch.c_str(), 54, "self.dataset[idx]"}});
    const uint32_t item = stack_of(t, {{"_worker_loop", worker.c_str(), 275},
                                       {"fetch", fetch.c_str(), 54, "self.dataset[idx]"},
                                       {"Table.__getitem__", "/table.py", 30, "self.x[i]"}});
    t.parents = {{5, 4}, {4, 0}};
    for (int twice = 0; twice < 2; ++twice) add_samples(t, t.threads.add({5, 5}), asks, asks);
    if (with_items) add_samples(t, t.threads.add({5, 5}), item, item);
    return diagnose(*make_capture(t), "x").device().host_lines.workers.at(0);
  };
  EXPECT_EQ(first(true).at.where(), "table.py:30");
  EXPECT_NEAR(first(true).share, 1, 1e-9);
  EXPECT_EQ(first(false).at.where(), "torch/utils/data/_utils/fetch.py:54");
}

// Work that the line below a wait calls needs what was waited for; the next batch, made further up,
// does not.
TEST(HostLines, WorkBelowAWaitNeedsItsValue) {
  const auto needs = [](uint32_t line, const char* function = "step") {
    Trace t = program();
    const uint32_t work = stack_of(t, {{function, "/train.py", line, "log(name, value)"},
                                       {"log", "/log.py", 5, "base.execute(row)"}});
    const uint32_t wait = stack_of(t, {{"step", "/train.py", 20, "values.tolist()"}});
    add_samples(t, 0, work, wait);
    const Diagnosis g = diagnose(*make_capture(t), "x");
    const HostLines& h = g.device().host_lines;
    return h.needs_value_ns / static_cast<double>(g.device().budget[Leaf::after_sync]);
  };
  EXPECT_GT(needs(21), 0.9);
  EXPECT_GT(needs(22), 0.9);
  EXPECT_LT(needs(23), 0.1);
  EXPECT_LT(needs(12), 0.1);
  EXPECT_LT(needs(22, "collate"), 0.1) << "another function's";
}

// Samples alike are one record with even points.
TEST(HostLines, PointsOfARecordFallWhereTheyLie) {
  Trace t;
  t.threads.add({1, 1});
  const uint32_t stack = stack_of(t, {{"f", "/a.py", 1}});
  t.samples.push_back({100, 500, 5, 0, stack});
  HostLineCounts counts;
  counts.add(t, 0, 100, Leaf::host_code, 0);    // none
  counts.add(t, 100, 101, Leaf::host_code, 0);  // one
  counts.add(t, 101, 300, Leaf::host_code, 0);  // one
  counts.add(t, 300, 900, Leaf::host_code, 0);  // three
  counts.add(t, 900, 990, Leaf::host_code, 0);
  Budget idle;
  idle[Leaf::host_code] = 1000;
  EXPECT_EQ(counts.finish(t, idle).samples, 5);
  counts.add(t, 0, 990, Leaf::dependency, 0);  // not the host's
  EXPECT_EQ(counts.finish(t, idle).samples, 5);
}

TEST(StackWords, PlumbingIsFolded) {
  Trace t;
  const std::string data = std::string(kTorch) + "utils/data/";
  const std::string loader = data + "dataloader.py", fetch = data + "_utils/fetch.py";
  const uint32_t stack =
      stack_of(t, {{"<module>", "/home/a/train.py", 30, "main()"},
                   {"main", "/home/a/train.py", 12, "batch in loader"},
                   {"_BaseDataLoaderIter.__next__", loader.c_str(), 630},
                   {"_MapDatasetFetcher.fetch", fetch.c_str(), 51},
                   {"Data.__getitem__", "/home/a/dataset.py", 41, "np.sort(x)"},
                   {"sort", "/opt/lib/python3.11/site-packages/numpy/_core/fromnumeric.py", 1017}});
  const StackWords w = stack_words(t, stack);
  EXPECT_EQ(w.at.where(), "dataset.py:41");
  EXPECT_EQ(w.at.text, "np.sort(x)");
  EXPECT_EQ(w.innermost.where(), "numpy/_core/fromnumeric.py:1017");
  EXPECT_EQ(w.caller.where(), "train.py:12");
  EXPECT_EQ(w.via, "DataLoader.__next__");
  EXPECT_TRUE(w.remark.starts_with("num_workers=0")) << w.remark;
}

TEST(StackWords, ASamplerIsNoWorkersMatter) {
  Trace t;
  const std::string loader = std::string(kTorch) + "utils/data/dataloader.py",
                    sampler = std::string(kTorch) + "utils/data/sampler.py";
  const StackWords w =
      stack_words(t, stack_of(t, {{"main", "/home/a/train.py", 12, "batch in loader"},
                                  {"_BaseDataLoaderIter.__next__", loader.c_str(), 630},
                                  {"WeightedRandomSampler.__iter__", sampler.c_str(), 277}}));
  EXPECT_EQ(w.at.where(), "train.py:12");
  EXPECT_TRUE(w.remark.starts_with(kSamplerRuns)) << w.remark;
}

// A forked worker keeps the frames of its parent below its own.
TEST(StackWords, AWorkerIsNotInTheLineThatStartedIt) {
  Trace t;
  const std::string worker = std::string(kTorch) + "utils/data/_utils/worker.py";
  const uint32_t idle = stack_of(
      t, {{"main", "/home/a/train.py", 12},
          {"BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314},
          {"_worker_loop", worker.c_str(), 275},
          {"select.poll", "/usr/lib/python3.11/selectors.py", 415}});
  const StackWords w = stack_words(t, idle);
  EXPECT_FALSE(w.caller.known());
  EXPECT_EQ(w.at.where(), "selectors.py:415");
  EXPECT_EQ(w.remark, "a loader's worker without work");
}

// A line of Python stays one line, whatever native code it ran; that which it ran most is named.
TEST(HostLines, TheNativeFunctionIsNamed) {
  Trace t = program();
  const uint32_t line = stack_of(t, {{"main", "/train.py", 7, "np.sort(x)"}});
  const auto below = [&](const char* function, const char* file) {
    return t.stacks.add({line, t.names.add(function), t.names.add(file), 0, t.names.add("")});
  };
  const std::string numpy = "/v/lib/python3.12/site-packages/numpy/_core/_umath.so";
  const uint32_t sort = below("quicksort", numpy.c_str());
  const uint32_t copy = below("memmove", "/lib/libc.so.6");
  add_samples(t, 0, line, line);
  size_t n = 0;
  for (HostSample& s : t.samples) s.stack = n++ % 3 < 2 ? sort : copy;
  const Diagnosis g = diagnose(*make_capture(t), "x");
  ASSERT_EQ(g.device().host_lines.lines.size(), 1u) << render_text(g);
  const HostLine& found = g.device().host_lines.lines[0];
  EXPECT_EQ(found.at.where(), "train.py:7");
  EXPECT_EQ(found.innermost.where(), "train.py:7");
  EXPECT_EQ(found.native.function, "quicksort");
  EXPECT_NEAR(found.native_share, 2.0 / 3, 0.05);
  EXPECT_NE(render_text(g).find("of it in native code, quicksort of numpy/_core/_umath.so"),
            std::string::npos)
      << render_text(g);
}

// A program without Python has one frame alone.
TEST(HostLines, AProgramWithoutPythonHasItsFunction) {
  Trace t = program();
  const uint32_t own = stack_of(t, {{"shuffle", "/home/a/build/train", 0}});
  const uint32_t sleeps = stack_of(t, {{"poll", "[kernel]", 0}});
  add_samples(t, 0, own, sleeps);
  const Diagnosis g = diagnose(*make_capture(t), "x");
  ASSERT_EQ(g.device().host_lines.lines.size(), 1u) << render_text(g);
  EXPECT_EQ(g.device().host_lines.lines[0].at.function, "shuffle");
  EXPECT_EQ(g.device().host_lines.lines[0].at.where(), "train");
  EXPECT_FALSE(g.device().host_lines.lines[0].native.known());
}

TEST(StackWords, WhoseCode) {
  EXPECT_EQ(owner_of("/home/a/train.py"), CodeOwner::program);
  EXPECT_EQ(owner_of("<string>"), CodeOwner::program);
  EXPECT_EQ(owner_of("/usr/lib/python3/dist-packages/numpy/x.py"), CodeOwner::library);
  EXPECT_EQ(owner_of("/v/lib/python3.12/site-packages/torch/nn/x.py"), CodeOwner::framework);
  EXPECT_EQ(owner_of("/v/lib/python3.12/contextlib.py"), CodeOwner::python);
  EXPECT_EQ(owner_of("<frozen importlib._bootstrap>"), CodeOwner::python);
  EXPECT_EQ(owner_of("/v/bin/torchrun"), CodeOwner::library);
  EXPECT_EQ(owner_of("/home/bin/train.py"), CodeOwner::program);
  EXPECT_EQ(owner_of("/usr/lib/libz.so.1"), CodeOwner::library);
  EXPECT_EQ(owner_of("[kernel]"), CodeOwner::library);
  EXPECT_EQ(owner_of("/tmp/torchinductor_a/dh/cdh3k.py"), CodeOwner::framework);
  EXPECT_EQ(owner_of("/home/a/build/train"), CodeOwner::program);
}

}  // namespace
}  // namespace saturate::observe
