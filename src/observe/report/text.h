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

// "CUDA Graphs, with no waiting for the device": what has to be applied as well is named.
std::string fix_title(const Fix& fix);
// "up to 2.10x" of a ceiling, "about 1.90x (an estimate, 1.50x to 2.40x)" of an estimate.
std::string bound_words(bool ceiling, double speedup, double low, double high);
// What a fix takes away that is not its own; empty when that is little.
std::string hides_words(const Fix& fix);

std::string format_ns(double ns);  // "843 ns", "12.3 us", "7.41 ms", "1.20 s"

}  // namespace saturate::observe
