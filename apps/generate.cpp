// SPDX-License-Identifier: Apache-2.0
#include "apps/commands.h"
#include "base/error.h"

namespace saturate::apps {

int run_generate(const GenerateOptions&) {
  throw Error(Errc::unsupported, "generate", "this build has no training engine");
}

}  // namespace saturate::apps
