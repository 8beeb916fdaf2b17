// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "base/printable.h"
#include "observe/report/diagnosis.h"

namespace saturate::observe {

// For the terminal: verdict, the budget that sums, ranked fixes, what is not the cause, and how
// good the capture was. Plain characters, at most 100 columns but for the evidence. Texts from the
// file lose their control characters.
std::string render_text(const Diagnosis& diagnosis);

std::string format_ns(double ns);  // "843 ns", "12.3 us", "7.41 ms", "1.20 s"

}  // namespace saturate::observe
