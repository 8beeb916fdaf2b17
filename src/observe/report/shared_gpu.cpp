// SPDX-License-Identifier: Apache-2.0
#include "observe/report/shared_gpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "observe/report/text.h"

namespace saturate::observe {

std::optional<SharedGpu> shared_gpu(const Diagnosis& g) {
  constexpr double kLeastShare = 0.05, kShortestNs = 3e5, kLongestNs = 20e6;
  if (g.analysis.devices.size() != 1 || g.ranks || g.counters.neighbours.size() != 1) return {};
  const DeviceAnalysis& d = g.device();
  SharedGpu s;
  s.gpu = g.counters.neighbours.begin()->first;
  s.others = g.counters.neighbours.begin()->second;
  s.share = static_cast<double>(d.budget[Leaf::dependency]) /
            static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
  for (const auto& [key, time] : d.evidence)
    if (key.first == Leaf::dependency) s.waits += time.count;
  if (s.waits == 0 || s.others == 0 || s.share < kLeastShare) return {};
  s.mean_ns = static_cast<double>(d.budget[Leaf::dependency]) / static_cast<double>(s.waits);
  if (s.mean_ns < kShortestNs || s.mean_ns > kLongestNs) return {};
  return s;
}

std::string shared_gpu_words(const Diagnosis& g) {
  const std::optional<SharedGpu> s = shared_gpu(g);
  if (!s) return "";
  return fmt::format(
      "{} other {} on GPU {} too: {:.0f}% of the time this program's work was issued and the GPU "
      "did nothing of it ({} waits of {} on average, as turns of several programs are); alone it "
      "would be up to {:.2f}x as fast, and the fixes would bring more",
      s->others, s->others == 1 ? "process is" : "processes are", s->gpu, 100 * s->share, s->waits,
      format_ns(s->mean_ns), 1 / (1 - std::min(s->share, 0.99)));
}

void name_shared_gpu(Diagnosis& g) {
  if (g.verdict.id != "dependency_bound" || !shared_gpu(g)) return;
  g.verdict.id = "shared_gpu";
  g.verdict.headline = "sharing the GPU with other programs";
  g.verdict.why = shared_gpu_words(g);
  g.verdict.next =
      "give it a GPU of its own (CUDA_VISIBLE_DEVICES; saturate top names who is on it), or run "
      "all of them under nvidia-cuda-mps-control, which lets kernels of several programs run at "
      "once";
}

}  // namespace saturate::observe
