// SPDX-License-Identifier: Apache-2.0
#include "plan/automatic.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "plan/measure.h"
#include "plan/planner.h"
#include "train/tuned_tables.h"

namespace saturate::plan {
namespace {

Machine machine_of(Device device) {
  const std::string name = device_info(device).name;
  for (const std::string_view known : machine_names()) {
    Machine m = read_machine(std::string(known));
    if (device.is_cuda() && m.device == name) return m;
  }
  return measure_device(device);
}

// What the plan cannot tell apart.
constexpr double kAsFast = 1.02;

// The fastest, or data parallel with ZeRO 1 where that is as fast: it is the plainest.
const Estimate& preferred(const std::vector<Estimate>& ranked) {
  const auto plain = std::ranges::find_if(ranked, [](const Estimate& e) {
    const ParallelConfig& p = e.config.parallel;
    return p.tp * p.cp * p.pp * p.ep == 1 && p.zero == "1" && p.dp_shard == 0 && !p.offload;
  });
  const bool as_fast = plain != ranked.end() && plain->step_ms <= kAsFast * ranked.front().step_ms;
  return as_fast ? *plain : ranked.front();
}

// The chosen layout and batch; nothing when none fits.
struct Choice {
  std::string layout;
  int64_t target_tokens = 0, accumulate = 0;
};

Choice choice_of(const Plan& plan, int ranks) {
  if (plan.ranked.empty()) {
    std::string why;
    for (const Refusal& r : plan.refused)
      why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", r.layouts.front(), r.reason);
    throw Error(Errc::invalid_argument, "parallel",
                fmt::format("parallel = auto: no layout of {} ranks fits: {:.600}", ranks, why));
  }
  const Estimate& best = preferred(plan.ranked);
  log_info(fmt::format(
      "parallel = auto: {} in micro-batches of {} x {}, {:.2f} ms a step by the plan of {} layouts",
      best.layout, best.config.batch.target_tokens, best.config.batch.accumulate, best.step_ms,
      plan.ranked.size()));
  for (size_t i = 0; i < std::min<size_t>(plan.ranked.size(), 4); ++i) {
    const Estimate& e = plan.ranked[i];
    if (&e != &best)
      log_info(fmt::format("  {} takes {:.2f} ms{}{}", e.layout, e.step_ms,
                           e.why.empty() ? "" : ": ", e.why));
  }
  return {best.layout, best.config.batch.target_tokens, best.config.batch.accumulate};
}

}  // namespace

void take_best_layout(RunConfig& config, int64_t length, parallel::Communicator& ranks,
                      int local_ranks, Device device) {
  if (config.parallel.schedule != "auto") return;
  config.parallel = {};
  if (ranks.size() == 1) return;
  if (config.batch.target_tokens <= 0)
    throw Error(Errc::invalid_argument, "parallel",
                "parallel = auto shares out batches of a size that it knows: give "
                "batch.target_tokens, of one rank and micro-batch");
  use_device(device);
  const LinkTables links = measure_all_links(ranks, local_ranks, device);
  Choice choice;
  if (ranks.rank() == 0) {
    PlanRequest request{.config = config,
                        .length = std::gcd(length, config.batch.target_tokens),
                        .devices = ranks.size(),
                        .device = device,
                        .kernels = train::kernel_options(config, device),
                        .machine = machine_of(device)};
    replace_links(request.machine, links, local_ranks, ranks.size() / local_ranks);
    choice = choice_of(make_plan(request), ranks.size());
  }
  int64_t numbers[] = {static_cast<int64_t>(choice.layout.size()), choice.target_tokens,
                       choice.accumulate};
  ranks.broadcast(numbers, sizeof numbers, 0);
  choice.layout.resize(static_cast<size_t>(numbers[0]));
  ranks.broadcast(choice.layout.data(), numbers[0], 0);
  set_parallel(config, choice.layout);
  config.batch.target_tokens = numbers[1];
  config.batch.accumulate = numbers[2];
}

}  // namespace saturate::plan
