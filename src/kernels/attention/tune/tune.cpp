// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "base/philox.h"
#include "kernels/attention/hopper/backward.h"
#include "kernels/elementwise/elementwise.h"
#include "runtime/memory.h"

namespace saturate::kernels {
namespace {

constexpr double kWorthIt = 0.98;
constexpr double kHopeless = 3;  // times the fastest: not measured well
constexpr int kSets = 3;         // of inputs, in turn, so that L2 does not hold the next call's
constexpr int kCalls = 12, kRounds = 9;

// n lengths of that mean, one of them `longest`.
std::vector<int32_t> offsets_of(int64_t n, int64_t mean, int64_t longest) {
  std::vector<int32_t> starts{0};
  const int64_t rest = n * mean - longest;
  if (longest < mean || rest < 0)
    throw Error(Errc::invalid_argument, "tune",
                fmt::format("{} sequences of {} rows in the mean, but the longest has {}", n, mean,
                            longest));
  for (int64_t s = 0; s < n; ++s) {
    const int64_t end = s == 0 ? longest : longest + rest * s / (n - 1);
    starts.push_back(static_cast<int32_t>(end));
  }
  return starts;
}

double unit_of(DType type) {
  if (type == DType::bf16) return 0x1p-8;
  return type == DType::f16 ? 0x1p-11 : 0x1p-16;  // f32: products in three bf16 parts, long sums
}

class AttentionProblem {
 public:
  AttentionProblem(const Context& ctx, const Stream& stream, const AttentionKey& key)
      : ctx_(ctx), stream_(stream), key_(key) {
    const bool longer_keys = key.keys > key.queries;
    const auto starts_q =
        offsets_of(key.sequences, key.queries, longer_keys ? key.queries : key.longest);
    const auto starts_k = offsets_of(
        key.sequences, key.keys, longer_keys || key.keys == key.queries ? key.longest : key.keys);
    cu_q_ = upload(starts_q.data(), starts_q.size() * sizeof(int32_t));
    cu_k_ = upload(starts_k.data(), starts_k.size() * sizeof(int32_t));
    const uint64_t state[2] = {1, 2};
    rng_ = upload(state, sizeof state);
    AttentionArgs& a = sizes_;
    a.sequences = key.sequences, a.heads = key.heads, a.kv_heads = key.kv_heads;
    a.head_size = key.head_size, a.v_head_size = key.v_head_size;
    a.q_rows = starts_q.back(), a.k_rows = starts_k.back();
    a.max_q = longer_keys ? key.queries : key.longest;
    a.max_k = longer_keys || key.keys == key.queries ? key.longest : key.keys;
    a.q_stride = key.heads * key.head_size, a.k_stride = key.kv_heads * key.head_size;
    a.v_stride = key.kv_heads * key.v_head_size, a.o_stride = key.heads * key.v_head_size;
    a.dtype = key.dtype, a.causal = key.causal;
    a.scale = 1.0f / std::sqrt(static_cast<float>(key.head_size));
    a.dropout = key.dropout ? 0.1f : 0.0f;
    a.rng = {rng_.as<uint64_t>(), 1};
    a.cu_q = cu_q_.as<int32_t>(), a.cu_k = cu_k_.as<int32_t>();
    a = attention_resolved(a);  // implementations are launched by themselves
    make_pattern();
    for (int s = 0; s < kSets; ++s) add_set();
  }

  const AttentionBackwardArgs& set(size_t n) const { return args_[n % args_.size()]; }

  // Results of a call on the first set as fp32: o of a forward pass, else d_q, d_k and d_v.
  std::vector<std::vector<float>> results(const std::function<void()>& call) const {
    const Set& s = sets_.front();
    std::vector<const Buffer*> written{&s.o};
    if (key_.pass == AttentionPass::backward) written = {&s.d_q, &s.d_k, &s.d_v};
    for (const Buffer* b : written) fill_bytes(stream_, b->data(), 0xFF, b->bytes());  // NaN
    call();
    std::vector<std::vector<float>> found;
    for (const Buffer* b : written) found.push_back(download(*b));
    return found;
  }

  // Milliseconds of `calls` calls over the sets, as a graph.
  class Timer {
   public:
    Timer(const AttentionProblem& p, int calls,
          const std::function<void(const AttentionBackwardArgs&)>& call)
        : p_(p), calls_(calls), graph_(Graph::capture(p.stream_, [&] {
            for (int n = 0; n < calls; ++n) call(p.set(static_cast<size_t>(n)));
          })) {}
    double once() const {
      begin_.record(p_.stream_);
      graph_.launch(p_.stream_);
      end_.record(p_.stream_);
      end_.synchronize();
      return Event::elapsed_ms(begin_, end_) / calls_;
    }

   private:
    const AttentionProblem& p_;
    int calls_;
    Graph graph_;
    mutable Event begin_{p_.ctx_.device, Event::Timing::on},
        end_{p_.ctx_.device, Event::Timing::on};
  };

 private:
  struct Set {
    Buffer q, k, v, o, lse, d_o, d_q, d_k, d_v, delta, workspace;
  };

  Buffer upload(const void* data, size_t bytes) const {
    Buffer b(ctx_.device, bytes);
    copy_to_device(stream_, b.data(), data, bytes);
    stream_.synchronize();
    return b;
  }
  std::vector<float> download(const Buffer& b) const {
    const size_t count = b.bytes() / size_of(key_.dtype);
    const Buffer wide(ctx_.device, count * sizeof(float));
    cast(ctx_, {.x = b.data(),
                .y = wide.data(),
                .count = static_cast<int64_t>(count),
                .x_type = key_.dtype,
                .y_type = DType::f32});
    std::vector<float> host(count);
    copy_to_host(stream_, host.data(), wide.data(), wide.bytes());
    stream_.synchronize();
    return host;
  }
  // Uniform in [-1, 1): zeros would run faster.
  void make_pattern() {
    constexpr size_t kValues = 1048573;  // prime, so that rows of no length repeat in step
    std::vector<float> host(kValues);
    for (size_t i = 0; i < kValues; ++i)
      host[i] = static_cast<float>(philox4x32(3, i, 0).x[0] >> 8) * 0x1p-23f - 1.0f;
    const Buffer wide = upload(host.data(), host.size() * sizeof(float));
    pattern_ = Buffer(ctx_.device, kValues * size_of(key_.dtype));
    cast(ctx_, {.x = wide.data(),
                .y = pattern_.data(),
                .count = kValues,
                .x_type = DType::f32,
                .y_type = key_.dtype});
    stream_.synchronize();
  }
  Buffer draw(int64_t elements) const {
    Buffer b = room(elements, size_of(key_.dtype));
    for (size_t at = 0; at < b.bytes(); at += pattern_.bytes())
      copy_on_device(stream_, b.as<char>() + at, pattern_.data(),
                     std::min(pattern_.bytes(), b.bytes() - at));
    return b;
  }
  Buffer room(int64_t elements, size_t each) const {
    return Buffer(ctx_.device, static_cast<size_t>(elements) * each);
  }

  void add_set() {
    const AttentionArgs& a = sizes_;
    const size_t size = size_of(a.dtype), wide = size_of(wide_of(a.dtype));
    const int64_t q = a.q_rows * a.q_stride, k = a.k_rows * a.k_stride, v = a.k_rows * a.v_stride,
                  o = a.q_rows * a.o_stride;
    const bool back = key_.pass == AttentionPass::backward;
    const int64_t workspace = back ? attention_backward_hopper_workspace(a) : 0;
    sets_.push_back({draw(q), draw(k), draw(v), room(o, size), room(a.heads * a.q_rows, wide),
                     back ? draw(o) : Buffer(), room(back ? q : 0, size), room(back ? k : 0, size),
                     room(back ? v : 0, size), room(back ? a.heads * a.q_rows : 0, wide),
                     room(workspace, 1)});
    const Set& s = sets_.back();
    AttentionBackwardArgs b;
    b.forward = a;
    b.forward.q = s.q.data(), b.forward.k = s.k.data(), b.forward.v = s.v.data();
    b.forward.o = s.o.data(), b.forward.lse = s.lse.data();
    b.d_o = s.d_o.data(), b.d_q = s.d_q.data(), b.d_k = s.d_k.data(), b.d_v = s.d_v.data();
    b.d_q_stride = a.q_stride, b.d_k_stride = a.k_stride, b.d_v_stride = a.v_stride;
    b.delta = s.delta.data();
    b.workspace = s.workspace.data(), b.workspace_bytes = workspace;
    args_.push_back(b);
  }

  const Context& ctx_;
  const Stream& stream_;
  AttentionKey key_;
  AttentionArgs sizes_;
  Buffer cu_q_, cu_k_, rng_, pattern_;
  std::vector<Set> sets_;
  std::vector<AttentionBackwardArgs> args_;
};

// ||x - y|| / ||y||; infinite where x is not a number.
double distance(const std::vector<float>& x, const std::vector<float>& y) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    apart += d * d;
    size += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  }
  return std::isfinite(apart) ? std::sqrt(apart / std::max(size, 1e-30)) : INFINITY;
}

template <class Args>
class Tuner {
 public:
  Tuner(const Context& ctx, const Stream& stream, const AttentionKey& key,
        std::span<const Impl<Args>> list)
      : ctx_(ctx), problem_(ctx, stream, key), list_(list) {
    result_.key = key;
  }

  AttentionTuneResult run() {
    for (size_t n = 0; n < kSets; ++n) attention_forward(ctx_, problem_.set(n).forward);
    const Impl<Args>& usual = usual_impl();
    const auto expected = problem_.results([&] { launch(usual, problem_.set(0)); });
    for (const Impl<Args>& impl : list_) {
      if (impl.device != ctx_.device.kind) continue;
      std::string wrong;
      if (const Fit fit = impl.fits(ctx_, args_of(problem_.set(0))); !fit) {
        wrong = fit.reason;
      } else if (&impl != &usual) {
        wrong = difference(problem_.results([&] { launch(impl, problem_.set(0)); }), expected);
      }
      if (wrong.empty())
        candidates_.push_back(&impl);
      else
        result_.refused.push_back({impl.name, wrong});
    }
    measure();
    choose(usual);
    return std::move(result_);
  }

 private:
  static const Args& args_of(const AttentionBackwardArgs& b) {
    if constexpr (std::is_same_v<Args, AttentionArgs>)
      return b.forward;
    else
      return b;
  }
  void launch(const Impl<Args>& impl, const AttentionBackwardArgs& b) const {
    impl.launch(ctx_, args_of(b));
  }
  // What runs without a table.
  const Impl<Args>& usual_impl() const {
    return *plan_attention(ctx_, args_of(problem_.set(0))).impl;
  }
  std::string difference(const std::vector<std::vector<float>>& got,
                         const std::vector<std::vector<float>>& expected) const {
    const double most = 4 * unit_of(result_.key.dtype);
    for (size_t i = 0; i < got.size(); ++i) {
      const double d = distance(got[i], expected[i]);
      if (!(d <= most))
        return fmt::format(
            "its results are {:.1e} away from those of the usual kernel, more than {:.1e}", d,
            most);
    }
    return "";
  }

  void measure() {
    using Timer = AttentionProblem::Timer;
    const auto timer = [&](size_t i, int calls) {
      return std::make_unique<Timer>(
          problem_, calls, [&, i](const AttentionBackwardArgs& b) { launch(*candidates_[i], b); });
    };
    std::vector<double> first;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const auto t = timer(i, kSets);
      t->once();
      first.push_back(t->once());
    }
    const double best = *std::min_element(first.begin(), first.end());
    std::vector<std::vector<double>> ms(candidates_.size());
    std::vector<std::unique_ptr<Timer>> timers(candidates_.size());
    for (size_t i = 0; i < candidates_.size(); ++i) {
      ms[i].push_back(first[i]);
      if (first[i] <= kHopeless * best) timers[i] = timer(i, kCalls);
    }
    for (int round = -1; round < kRounds; ++round)  // the first one warms up
      for (size_t i = 0; i < timers.size(); ++i) {
        if (timers[i] == nullptr) continue;
        if (round == 0) ms[i].clear();
        ms[i].push_back(timers[i]->once());
      }
    for (size_t i = 0; i < candidates_.size(); ++i) {
      std::sort(ms[i].begin(), ms[i].end());
      result_.rows.push_back({candidates_[i]->name, ms[i][ms[i].size() / 2]});
    }
    std::stable_sort(result_.rows.begin(), result_.rows.end(),
                     [](const auto& x, const auto& y) { return x.ms < y.ms; });
  }

  void choose(const Impl<Args>& usual) {
    const AttentionTuneRow& best = result_.rows.front();
    result_.choice = {best.impl, best.ms, best.ms};
    for (const AttentionTuneRow& row : result_.rows) {
      if (row.impl != usual.name) continue;
      result_.choice.default_ms = row.ms;
      if (best.ms > row.ms * kWorthIt) result_.choice = {row.impl, row.ms, row.ms};
    }
  }

  const Context& ctx_;
  AttentionProblem problem_;
  std::span<const Impl<Args>> list_;
  std::vector<const Impl<Args>*> candidates_;
  AttentionTuneResult result_;
};

}  // namespace

AttentionTuneResult tune_attention(const Context& ctx, const Stream& stream,
                                   const AttentionKey& key) {
  if (key.features != 0)
    throw Error(Errc::unsupported, "tune",
                text_of(key) + ": only shapes without features are tuned");
  if (key.pass == AttentionPass::forward)
    return Tuner<AttentionArgs>(ctx, stream, key, attention_forward_impls()).run();
  return Tuner<AttentionBackwardArgs>(ctx, stream, key, attention_backward_impls()).run();
}

}  // namespace saturate::kernels
