// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules, evaluated on the device from the step number.
#pragma once
#include <cmath>
#include <cstdint>

#include "base/philox.h"  // SAT_HD

namespace saturate {

enum class ScheduleKind : uint8_t { constant, inverse_sqrt, linear, cosine, warmup_stable_decay };

struct Schedule {
  ScheduleKind kind = ScheduleKind::inverse_sqrt;
  float peak_lr = 5e-4f;
  float final_ratio = 0.0f;  // lr at total_steps over peak_lr (linear, cosine, warmup_stable_decay)
  int64_t warmup_steps = 4000;  // linear from 0 to peak_lr
  int64_t total_steps = 0;      // needed by linear, cosine and warmup_stable_decay
  float decay_fraction = 0.2f;  // warmup_stable_decay: share of total_steps in the final decay
};

// Learning rate of step `step`, counted from 1.
// inverse_sqrt: peak * min(step / warmup, sqrt(warmup / step)) (Vaswani et al., arXiv:1706.03762,
// rescaled to its peak). warmup_stable_decay: constant, then linear decay (Hu et al.,
// arXiv:2404.06395).
SAT_HD float learning_rate(const Schedule& s, int64_t step) {
  const double t = static_cast<double>(step);
  const double warmup = static_cast<double>(s.warmup_steps);
  if (step < s.warmup_steps) return static_cast<float>(s.peak_lr * t / warmup);
  const double total = static_cast<double>(s.total_steps);
  double ratio = 1.0;  // share of the way from peak (1) to final (0)
  switch (s.kind) {
    case ScheduleKind::constant:
      return s.peak_lr;
    case ScheduleKind::inverse_sqrt:
      return s.warmup_steps > 0 ? static_cast<float>(s.peak_lr * sqrt(warmup / t))
                                : static_cast<float>(s.peak_lr / sqrt(t));
    case ScheduleKind::linear:
    case ScheduleKind::cosine: {
      const double progress = t >= total ? 1.0 : (t - warmup) / (total - warmup);
      ratio = s.kind == ScheduleKind::linear ? 1.0 - progress
                                             : 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
      break;
    }
    case ScheduleKind::warmup_stable_decay: {
      const double decay_steps = s.decay_fraction * total;
      const double left = total - t;
      ratio = left >= decay_steps ? 1.0 : (left <= 0 ? 0.0 : left / decay_steps);
      break;
    }
  }
  return static_cast<float>(s.peak_lr * (s.final_ratio + (1.0 - s.final_ratio) * ratio));
}

}  // namespace saturate
