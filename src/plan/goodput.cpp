// SPDX-License-Identifier: Apache-2.0
#include "plan/goodput.h"

#include <algorithm>
#include <cmath>

namespace saturate::plan {

double goodput(const FailureModel& m, double interval_s) {
  if (interval_s <= 0) return 0;
  if (m.mtbf_s <= 0) return interval_s / (interval_s + m.checkpoint_s);
  // Time to get through interval and checkpoint without a failure: M e^(R/M) (e^((t+c)/M) - 1).
  const double exponent = (interval_s + m.checkpoint_s) / m.mtbf_s;
  if (exponent > 500) return 0;
  return interval_s / (m.mtbf_s * std::exp(m.restart_s / m.mtbf_s) * std::expm1(exponent));
}

double best_interval_s(const FailureModel& m) {
  // Goodput rises, then falls: golden section between a second and ten mean times.
  constexpr double kGolden = 0.6180339887498949;
  double low = 1, high = std::max(10.0, 10 * m.mtbf_s);
  while (high - low > 0.5) {
    const double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    // Where both are 0 the interval is far too long.
    if (goodput(m, a) >= goodput(m, b)) {
      high = b;
    } else {
      low = a;
    }
  }
  return (low + high) / 2;
}

FailureModel failure_model(const Machine& m, int devices, double checkpoint_bytes) {
  const int hosts = (devices + m.devices_per_host - 1) / m.devices_per_host;
  return {.mtbf_s = m.failures.device_mtbf_hours * 3600 / devices,
          .checkpoint_s = m.failures.checkpoint_s +
                          (m.failures.checkpoint_gbs > 0
                               ? checkpoint_bytes / (m.failures.checkpoint_gbs * 1e9 * hosts)
                               : 0),
          .restart_s = m.failures.restart_s};
}

}  // namespace saturate::plan
