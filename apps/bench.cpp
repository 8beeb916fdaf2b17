// SPDX-License-Identifier: Apache-2.0
#include "apps/commands.h"
#include "base/error.h"

namespace saturate::apps {

int run_bench(const BenchOptions&) {
  throw Error(Errc::unsupported, "bench", "this build has no training engine");
}

}  // namespace saturate::apps
