// SPDX-License-Identifier: Apache-2.0
// `saturate bench attention`: one shape by what dispatch chooses, or with --ladder every
// implementation that fits, in every precision of the device, over lengths, and others' times
// beside them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/attention_peers.h"
#include "apps/bench_against.h"
#include "apps/commands.h"
#include "apps/ladder_plot.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/attention/cute/cute.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/int8/int8.h"
#include "kernels/attention/materialised/materialised.h"
#include "kernels/attention/tune/table.h"
#include "runtime/context.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/stream.h"
#include "train/throughput.h"

namespace saturate::apps {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionBackwardArgs;
using train::random_buffer;

struct Shape {
  int64_t batch, heads, length, head_size;
  bool causal;
  double gflop() const {
    return 4e-9 * static_cast<double>(batch * heads) * static_cast<double>(length * length) *
           static_cast<double>(head_size) / (causal ? 2 : 1);
  }
};

// Inputs and outputs of self-attention over sequences of one length, several times over, so that a
// cache does not hold what the next call reads.
class Problem {
 public:
  Problem(const Context& ctx, const Stream& stream, const Shape& x, DType type,
          const kernels::AttentionTable* measured = nullptr) {
    const int64_t rows = x.batch * x.length, width = x.heads * x.head_size;
    const size_t size = size_of(type), wide = size_of(wide_of(type));
    std::vector<int32_t> starts;
    for (int64_t s = 0; s <= x.batch; ++s) starts.push_back(static_cast<int32_t>(s * x.length));
    cu_ = Buffer(ctx.device, starts.size() * sizeof(int32_t));
    copy_to_device(stream, cu_.data(), starts.data(), cu_.bytes());
    const auto bytes = [&](int64_t elements, size_t each) {
      return static_cast<size_t>(elements) * each;
    };
    for (int s = 0; s < (ctx.device.is_cuda() ? 3 : 1); ++s) {
      sets_.push_back({random_buffer(ctx, stream, rows * width * 3, type, 3),
                       random_buffer(ctx, stream, rows * width, type, 4),
                       Buffer(ctx.device, bytes(rows * width, size)),
                       Buffer(ctx.device, bytes(rows * width * 3, size)),
                       Buffer(ctx.device, bytes(rows * x.heads, wide)),
                       Buffer(ctx.device, bytes(rows * x.heads, wide))});
      const Set& b = sets_.back();
      const auto part = [&](const Buffer& buffer, int64_t i) {
        return buffer.as<char>() + bytes(i * width, size);
      };
      const AttentionArgs forward{.q = part(b.qkv, 0),
                                  .k = part(b.qkv, 1),
                                  .v = part(b.qkv, 2),
                                  .o = b.o.data(),
                                  .lse = b.lse.data(),
                                  .cu_q = cu_.as<int32_t>(),
                                  .cu_k = cu_.as<int32_t>(),
                                  .sequences = x.batch,
                                  .heads = x.heads,
                                  .kv_heads = x.heads,
                                  .head_size = x.head_size,
                                  .q_rows = rows,
                                  .k_rows = rows,
                                  .max_q = x.length,
                                  .max_k = x.length,
                                  .q_stride = 3 * width,
                                  .k_stride = 3 * width,
                                  .v_stride = 3 * width,
                                  .o_stride = width,
                                  .dtype = type,
                                  .causal = x.causal,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(x.head_size))};
      args_.push_back({.forward = forward,
                       .d_o = b.d_o.data(),
                       .d_q = part(b.d_qkv, 0),
                       .d_k = part(b.d_qkv, 1),
                       .d_v = part(b.d_qkv, 2),
                       .d_q_stride = 3 * width,
                       .d_k_stride = 3 * width,
                       .d_v_stride = 3 * width,
                       .delta = b.delta.data()});
      args_.back().workspace_bytes = kernels::kAnyWorkspace;
      const int64_t scratch = kernels::plan_attention(ctx, args_.back(), measured).workspace_bytes;
      workspaces_.emplace_back(ctx.device, static_cast<size_t>(scratch));
      args_.back().workspace = workspaces_.back().data();
      args_.back().workspace_bytes = scratch;
    }
    stream.synchronize();
  }
  const std::vector<AttentionBackwardArgs>& args() const { return args_; }

 private:
  struct Set {
    Buffer qkv, d_o, o, d_qkv, lse, delta;
  };
  Buffer cu_;
  std::vector<Set> sets_;
  std::vector<Buffer> workspaces_;
  std::vector<AttentionBackwardArgs> args_;
};

using Call = std::function<void(const AttentionBackwardArgs&)>;

// Median milliseconds of a call: on a GPU of replays of a graph of twelve calls.
double median_ms(const Context& ctx, const Stream& stream, const Problem& problem, int64_t repeats,
                 const Call& call) {
  const std::vector<AttentionBackwardArgs>& sets = problem.args();
  for (const AttentionBackwardArgs& set : sets) call(set);
  stream.synchronize();
  std::vector<double> ms;
  if (ctx.device.is_cuda()) {
    constexpr size_t kCalls = 12;
    const Graph graph = Graph::capture(stream, [&] {
      for (size_t n = 0; n < kCalls; ++n) call(sets[n % sets.size()]);
    });
    Event begin(ctx.device, Event::Timing::on), end(ctx.device, Event::Timing::on);
    for (int64_t n = -2; n < repeats; ++n) {
      begin.record(stream);
      graph.launch(stream);
      end.record(stream);
      end.synchronize();
      if (n >= 0) ms.push_back(Event::elapsed_ms(begin, end) / kCalls);
    }
  } else {
    using Clock = std::chrono::steady_clock;
    for (int64_t n = 0; n < repeats; ++n) {
      const Clock::time_point start = Clock::now();
      call(sets.front());
      ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

Shape shape_of(const BenchOptions& o) {
  if (o.shape.size() != 4) {
    throw Error(
        Errc::invalid_argument, "bench",
        "attention takes --shape BATCH HEADS LENGTH HEAD_SIZE, for example --shape 4 16 1024 64");
  }
  const Shape x{o.shape[0], o.shape[1], o.shape[2], o.shape[3], o.causal};
  if (std::min({x.batch, x.heads, x.length, x.head_size}) < 1)
    throw Error(Errc::invalid_argument, "bench", "attention: every size starts at 1");
  return x;
}

struct Rung {
  std::string name;
  double ms;
};

// Every implementation of one direction that fits, best first as dispatch would try them.
template <class Impls, class ArgsOf>
std::vector<Rung> climb(const Context& ctx, const Stream& stream, const Problem& problem,
                        int64_t repeats, const Impls& impls, const ArgsOf& args_of) {
  std::vector<Rung> rungs;
  for (const auto& impl : impls) {
    if (impl.device != ctx.device.kind || !impl.fits(ctx, args_of(problem.args().front())))
      continue;
    const double ms =
        median_ms(ctx, stream, problem, repeats,
                  [&](const AttentionBackwardArgs& set) { impl.launch(ctx, args_of(set)); });
    rungs.push_back({impl.name, ms});
  }
  return rungs;
}

// The rung below all of them, whose scores lie in memory; nothing where they would be too many.
std::vector<Rung> first_rung(const Context& ctx, const Stream& stream, const Problem& problem,
                             int64_t repeats) {
  constexpr int64_t kMostScratch = int64_t{8} << 30;
  const AttentionArgs& args = problem.args().front().forward;
  const int64_t bytes = kernels::attention_forward_materialised_scratch(args);
  if (!kernels::attention_forward_materialised_fits(ctx, args) || bytes > kMostScratch) return {};
  const Buffer scratch(ctx.device, static_cast<size_t>(bytes));
  const double ms = median_ms(ctx, stream, problem, repeats, [&](const AttentionBackwardArgs& set) {
    kernels::attention_forward_materialised(ctx, {set.forward, scratch.data(), bytes});
  });
  return {{"attention_forward_materialised", ms}};
}

// Kernels with interfaces of their own: the rung in CuTe, and scores of integers, whose time holds
// the rounding of q and k.
std::vector<Rung> rungs_beside(const Context& ctx, const Stream& stream, const Problem& problem,
                               int64_t repeats) {
  std::vector<Rung> rungs;
  const AttentionArgs& args = problem.args().front().forward;
  if (kernels::attention_forward_int8_fits(ctx, args)) {
    const int64_t bytes = kernels::attention_forward_int8_scratch(args);
    const Buffer scratch(ctx.device, static_cast<size_t>(bytes));
    const double ms =
        median_ms(ctx, stream, problem, repeats, [&](const AttentionBackwardArgs& set) {
          kernels::attention_forward_int8(ctx, {set.forward, scratch.data(), bytes});
        });
    rungs.push_back({"attention_forward_int8", ms});
  }
  if (kernels::attention_forward_cute_fits(ctx, args)) {
    const double ms =
        median_ms(ctx, stream, problem, repeats, [&](const AttentionBackwardArgs& set) {
          kernels::attention_forward_cute(ctx, set.forward);
        });
    rungs.push_back({"attention_forward_cute", ms});
  }
  return rungs;
}

// Puts the peers' times of this problem at the end of the rungs; returns how many peers had some.
size_t add_peers(const std::vector<AttentionPeer>& peers, const Shape& x, DType type,
                 std::vector<Rung>& forward, std::vector<Rung>& backward) {
  size_t added = 0;
  for (const AttentionPeer& p : peers) {
    if (p.type != type || p.batch != x.batch || p.heads != x.heads || p.length != x.length ||
        p.head_size != x.head_size || p.causal != x.causal)
      continue;
    forward.push_back({"peer: " + p.name, p.forward_ms});
    if (p.backward_ms > 0) backward.push_back({"peer: " + p.name, p.backward_ms});
    ++added;
  }
  return added;
}

void report(const std::vector<Rung>& rungs, const Shape& x, DType type, double gflop,
            const std::string& device, std::ofstream& json) {
  const auto eager = std::find_if(rungs.begin(), rungs.end(),
                                  [](const Rung& r) { return r.name == "peer: eager"; });
  const auto is_ours = [](const Rung& r) { return !r.name.starts_with("peer: "); };
  const auto last = std::find_if(rungs.rbegin(), rungs.rend(), is_ours);
  for (const Rung& r : rungs) {
    const double base = eager != rungs.end() ? eager->ms : last != rungs.rend() ? last->ms : r.ms;
    fmt::print("{:<34} {:>5} {:>10.4f} {:>9.2f} {:>8.2f}x\n", r.name, name_of(type), r.ms,
               gflop / r.ms, base / r.ms);
    if (json.is_open())
      json << fmt::format(
          R"({{"what":"attention_ladder","device":"{}","implementation":"{}","type":"{}",)"
          R"("batch":{},"heads":{},"length":{},"head_size":{},"causal":{},"ms":{:.5f},)"
          R"("tflops":{:.2f},"{}":{:.3f}}})"
          "\n",
          device, r.name, name_of(type), x.batch, x.heads, x.length, x.head_size, x.causal, r.ms,
          gflop / r.ms, eager != rungs.end() ? "speed_up_over_eager" : "speed_up_over_last",
          base / r.ms);
  }
}

}  // namespace

void run_bench_attention(const BenchOptions& o, const kernels::KernelOptions& options,
                         const Context& ctx, const Stream& stream, DType type) {
  const Shape x = shape_of(o);
  const Problem problem(ctx, stream, x, type, options.attention_table.get());
  const AttentionBackwardArgs& any = problem.args().front();
  const auto plan = kernels::plan_attention(ctx, any.forward, options.attention_table.get());
  const auto plan_back = kernels::plan_attention(ctx, any, options.attention_table.get());
  const double forward =
      median_ms(ctx, stream, problem, o.repeats, [&](const AttentionBackwardArgs& set) {
        kernels::attention_forward(ctx, plan, set.forward);
      });
  const double backward = median_ms(
      ctx, stream, problem, o.repeats,
      [&](const AttentionBackwardArgs& set) { kernels::attention_backward(ctx, plan_back, set); });
  const std::string row = fmt::format(
      R"({{"what":"attention","batch":{},"heads":{},"length":{},"head_size":{},"causal":{},)"
      R"("type":"{}","forward_ms":{:.4f},"backward_ms":{:.4f},"forward_tflops":{:.1f},)"
      R"("backward_tflops":{:.1f}}})",
      x.batch, x.heads, x.length, x.head_size, x.causal, name_of(type), forward, backward,
      x.gflop() / forward, 2.5 * x.gflop() / backward);
  fmt::print("{}\n", complete_row(row, device_info(ctx.device).name, o.arguments));
}

int run_bench_attention_ladder(const BenchOptions& o, const Context& ctx, const Stream& stream) {
  const Shape base = shape_of(o);
  const DeviceInfo info = device_info(ctx.device);
  const std::vector<AttentionPeer> peers =
      o.peers.empty() ? std::vector<AttentionPeer>{} : read_attention_peers(o.peers);
  size_t matched = 0;  // of the peers
  LadderPlot plot{
      .title = fmt::format("attention forward, {} x {} heads of {}{}, {}", base.batch, base.heads,
                           base.head_size, base.causal ? ", causal" : "", info.name),
      .size_label = "length",
      .sizes = {},
      .lines = {},
      .roofline = {}};
  std::map<std::string, std::vector<double>> lines;
  std::ofstream json;
  if (!o.json.empty()) {
    json.open(o.json);
    if (!json)
      throw Error(Errc::io, "bench",
                  o.json + ": cannot be written; see that its folder exists and that you may");
  }
  if (const Fit built = kernels::attention_cute_is_built(); !built)
    fmt::print("attention_forward_cute: {}\n", built.reason);
  for (const int64_t length : o.sizes) {
    const Shape x{base.batch, base.heads, length, base.head_size, base.causal};
    plot.sizes.push_back(static_cast<double>(length));
    fmt::print("\n{} x {} x {} x {}{}\n{:<34} {:>5} {:>10} {:>9} {:>9}\n", x.batch, x.heads, length,
               x.head_size, x.causal ? " causal" : "", "implementation", "type", "ms", "TFLOP/s",
               "speed-up");
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      if (!ctx.device.is_cuda() && type != DType::f32) continue;
      const Problem problem(ctx, stream, x, type);
      auto forward = climb(
          ctx, stream, problem, o.repeats, kernels::attention_forward_impls(),
          [](const AttentionBackwardArgs& set) -> const AttentionArgs& { return set.forward; });
      for (const Rung& r : rungs_beside(ctx, stream, problem, o.repeats)) forward.push_back(r);
      for (const Rung& r : first_rung(ctx, stream, problem, o.repeats)) forward.push_back(r);
      auto backward = climb(
          ctx, stream, problem, o.repeats, kernels::attention_backward_impls(),
          [](const AttentionBackwardArgs& set) -> const AttentionBackwardArgs& { return set; });
      matched += add_peers(peers, x, type, forward, backward);
      report(forward, x, type, x.gflop(), info.name, json);
      for (const Rung& r : forward) {
        auto& line = lines[fmt::format("{} {}", r.name, name_of(type))];
        line.resize(plot.sizes.size());
        line.back() = x.gflop() / r.ms;
      }
      report(backward, x, type, 2.5 * x.gflop(), info.name, json);
    }
  }
  fmt::print("\nspeed-up: over eager of the peers where it is there, else over the last line\n");
  if (!o.peers.empty() && matched == 0)
    log_warning("[bench] no line of " + o.peers + " is about these shapes");
  for (auto& [name, rates] : lines) {
    rates.resize(plot.sizes.size());
    plot.lines.push_back({name, rates});
  }
  if (!o.plot.empty()) write_svg(plot, o.plot);
  return 0;
}

}  // namespace saturate::apps
