// SPDX-License-Identifier: Apache-2.0
#include "apps/commands.h"
#include "base/error.h"

namespace saturate::apps {

int run_translate(const TranslateOptions&) {
  throw Error(Errc::unsupported, "translate", "this build has no training engine");
}

}  // namespace saturate::apps
