// SPDX-License-Identifier: Apache-2.0
#include "apps/commands.h"
#include "base/error.h"

namespace saturate::apps {

int run_train(const RunConfig&) {
  throw Error(Errc::unsupported, "train", "this build has no training engine");
}

}  // namespace saturate::apps
