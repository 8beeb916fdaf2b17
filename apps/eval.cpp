// SPDX-License-Identifier: Apache-2.0
#include "apps/commands.h"
#include "base/error.h"

namespace saturate::apps {

int run_eval(const EvalOptions&) {
  throw Error(Errc::unsupported, "eval", "this build has no training engine");
}

}  // namespace saturate::apps
