// SPDX-License-Identifier: Apache-2.0
// `saturate bench --against`: this program in turns with another one, or with rows measured before.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "apps/commands.h"

namespace saturate::apps {

// The row of a measurement with what a later comparison needs: "device", where it is not there, the "commit" this
// program was built from and its "command".
std::string complete_row(const std::string& row, const std::string& device,
                         std::span<const std::string> arguments);

// How two times of the same work stand to each other. Beyond noise is what `slower` says: the interval lies above
// kTolerance.
struct BenchRatio {
  static constexpr double kTolerance = 1.01;
  double ratio = 1;  // median: above 1 this program is slower
  double
      low = 1,
      high =
          1;  // interval in which the true median lies, but for one time in a hundred on each side
  bool slower() const { return low > kTolerance; }
  bool faster() const { return high < 1 / kTolerance; }
};

// From pairs measured one after the other: the ratio of each pair, whose order statistics bound the median whatever the
// noise is like. With fewer than kFewestRounds pairs nothing is beyond noise.
constexpr int64_t kFewestRounds = 7;
BenchRatio compare_in_turns(std::span<const double> before, std::span<const double> now);

// Against one time that was measured before, known to a relative `spread` (half the distance of its 10th and 90th
// percentile; negative: not known, and taken as large as the distance of the times of now).
BenchRatio compare_with_row(double before, double spread, std::span<const double> now);

// Runs the bench command `rounds` times in turns with `against`, or each row of that file; prints what came out.
// Returns 0, or 1 when something is slower beyond noise. Errors: invalid_argument when nothing can be compared; io.
int run_bench_against(const BenchOptions& options);

}  // namespace saturate::apps
