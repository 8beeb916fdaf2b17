// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/tune_gemm.h"

#include <algorithm>
#include <chrono>

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/tune/halving.h"
#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/tune/tune_problem.h"

namespace saturate::kernels {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kWorthIt = 0.98;
constexpr double kWarmUpSeconds = 0.3;
constexpr size_t kQuickConfigurations = 400;  // of one implementation, the likeliest by its model

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Candidate {
  std::string impl, config;
  TuneProblem::Launch launch;
  double predicted_ms;
};

// The small sibling that every candidate has to get right as a whole, border tiles and all.
GemmKey small_sibling(GemmKey key) {
  key.m = 149;
  key.n = key.aligned ? 268 : 267;
  key.k = key.aligned ? 84 : 83;
  if (key.ta == Transpose::yes && key.aligned) key.m = 152;
  return key;
}

class Tuner {
 public:
  Tuner(const Context& ctx, const Stream& stream, const GemmKey& key, const ChipLimits& chip)
      : ctx_(ctx),
        small_(ctx, stream, small_sibling(key), 0),
        problem_(ctx, stream, key, chip.l2_bytes) {
    result_.key = key;
  }

  TuneResult run(Search search, const TunePhase& phase) {
    const Clock::time_point begin = Clock::now();
    collect(search, phase);
    result_.compile_seconds = seconds_since(begin);
    const Clock::time_point measuring = Clock::now();
    check(phase);
    if (candidates_.empty()) {
      throw Error(
          Errc::unsupported, "tune",
          "nothing can run " + text_of(result_.key) +
              (result_.refused.empty() ? std::string() : ": " + result_.refused.front().reason));
    }
    measure(search, phase);
    choose();
    result_.measure_seconds = seconds_since(measuring);
    return std::move(result_);
  }

 private:
  void collect(Search search, const TunePhase& phase) {
    const MatmulArgs x = problem_.first();
    for (const MatmulImpl& impl : matmul_impls()) {
      if (impl.device != ctx_.device.kind) continue;
      if (const Fit fit = impl.fits(ctx_, x); !fit) {
        result_.refused.push_back({impl.name, "", fit.reason});
        continue;
      }
      candidates_.push_back(
          {impl.name, "",
           [this, &impl](const MatmulArgs& a) { impl.prepare(ctx_, a).launch(ctx_, a); }, -1});
    }
    for (const ConfiguredImpl& impl : configured_impls()) {
      if (const Fit fit = impl.fits(ctx_, x); !fit) {
        if (std::none_of(result_.refused.begin(), result_.refused.end(),
                         [&](const TuneRefusal& r) { return r.impl == impl.name; }))
          result_.refused.push_back({impl.name, "", fit.reason});
        continue;
      }
      std::vector<std::string> configs = impl.configurations(ctx_, x, search);
      if (search == Search::quick && configs.size() > kQuickConfigurations)
        configs.resize(kQuickConfigurations);
      if (impl.prepare != nullptr) {
        impl.prepare(ctx_, x, configs,
                     [&](size_t done, size_t total) { phase("compiling", done, total); });
      }
      for (std::string& config : configs) {
        if (const Fit fit = impl.ready(ctx_, x, config); !fit) {
          result_.refused.push_back({impl.name, config, fit.reason});
          continue;
        }
        const double predicted = impl.predict != nullptr ? impl.predict(ctx_, x, config) : -1.0;
        candidates_.push_back({impl.name, config, {}, predicted});
        candidates_.back().launch = [this, &impl, config](const MatmulArgs& a) {
          impl.prepared(ctx_, a, config).launch(ctx_, a);
        };
      }
    }
  }

  void check(const TunePhase& phase) {
    std::vector<Candidate> right;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (i % 16 == 0) phase("checking", i, candidates_.size());
      Candidate& c = candidates_[i];
      std::string wrong = check_small(c);
      if (wrong.empty()) wrong = problem_.check(c.launch);
      if (wrong.empty()) {
        right.push_back(std::move(c));
      } else {
        result_.refused.push_back({c.impl, c.config, wrong});
      }
    }
    candidates_ = std::move(right);
  }

  // Configurations of a library hold for their own shape only, so only what is ready is checked.
  std::string check_small(const Candidate& c) const {
    const MatmulArgs x = small_.first();
    const ConfiguredImpl* impl = c.config.empty() ? nullptr : find_configured(c.impl);
    if (impl == nullptr) {
      for (const MatmulImpl& one : matmul_impls()) {
        if (c.impl == one.name && !one.fits(ctx_, x)) return "";
      }
    } else if (!impl->fits(ctx_, x) || !impl->ready(ctx_, x, c.config)) {
      return "";
    }
    const std::string wrong = small_.check(c.launch);
    return wrong.empty() ? "" : text_of(small_sibling(result_.key)) + ": " + wrong;
  }

  void measure(Search search, const TunePhase& phase) {
    std::vector<size_t> kept;  // the best guess of each implementation reaches the last pass
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const bool first = i == 0 || candidates_[i].impl != candidates_[i - 1].impl;
      if (candidates_[i].config.empty() || first) kept.push_back(i);
    }
    problem_.warm_up(candidates_.front().launch, kWarmUpSeconds);
    std::vector<double> last(candidates_.size(), 1.0);
    const auto once = [&](std::span<const size_t> ids) {
      std::vector<const TuneProblem::Launch*> launches;
      std::vector<double> expected;
      for (const size_t id : ids) {
        launches.push_back(&candidates_[id].launch);
        expected.push_back(last[id]);
      }
      std::vector<double> ms = problem_.time_once(launches, expected);
      for (size_t i = 0; i < ids.size(); ++i) last[ids[i]] = ms[i];
      return ms;
    };
    const std::vector<Ranked> ranking =
        rank_by_halving(candidates_.size(), kept, search, once,
                        [&](size_t done, size_t total) { phase("measuring", done, total); });
    for (const Ranked& r : ranking) {
      const Candidate& c = candidates_[r.id];
      result_.rows.push_back({c.impl, c.config, r.ms, r.samples, c.predicted_ms});
    }
  }

  void choose() {
    const TuneRow& best = result_.rows.front();
    result_.choice = {best.impl, best.config, best.ms, best.ms};
    // What matmul() runs without a table: the first of its list that fits.
    for (const MatmulImpl& impl : matmul_impls()) {
      for (const TuneRow& row : result_.rows) {
        if (row.impl != impl.name || !row.config.empty()) continue;
        result_.choice.default_ms = row.ms;
        if (best.ms > row.ms * kWorthIt) result_.choice = {row.impl, "", row.ms, row.ms};
        return;
      }
    }
  }

  const Context& ctx_;
  TuneProblem small_, problem_;
  std::vector<Candidate> candidates_;
  TuneResult result_;
};

}  // namespace

TuneResult tune_gemm(const Context& ctx, const Stream& stream, const GemmKey& key, Search search,
                     const TunePhase& phase) {
  return Tuner(ctx, stream, key, chip_limits(ctx.device)).run(search, phase);
}

}  // namespace saturate::kernels
