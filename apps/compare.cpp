// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "apps/commands.h"
#include "base/error.h"
#include "parallel/launch.h"
#include "train/layout_compare.h"

namespace saturate::apps {

RunConfig compare_defaults() {
  RunConfig config;
  config.model.preset = "tiny";
  config.data.vocab_size = 512;
  config.batch.target_tokens = 128;
  return config;
}

int run_compare(const CompareOptions& o) {
  if (o.layouts.size() != 2) {
    throw Error(Errc::invalid_argument, "compare",
                "give --layout twice, for example --layout dp=2 --layout tp=2");
  }
  const train::LayoutComparison c =
      train::compare_layouts(o.config, o.layouts[0], o.layouts[1], o.length, o.steps);
  if (parallel::current_launch().rank != 0) return 0;
  fmt::print("{}", train::to_text(c));
  return c.agree() ? 0 : kExitMachine;
}

}  // namespace saturate::apps
