// SPDX-License-Identifier: Apache-2.0
#include "base/exit_code.h"

#include "base/error.h"
#include "base/interrupt.h"

namespace saturate {

int exit_code_of(const std::exception& cause) noexcept {
  if (dynamic_cast<const Interrupted*>(&cause) != nullptr) return kExitInterrupted;
  const auto* error = dynamic_cast<const Error*>(&cause);
  if (error == nullptr) return kExitMachine;
  const bool asked = error->code() == Errc::invalid_argument || error->code() == Errc::unsupported;
  return asked ? kExitUsage : kExitMachine;
}

}  // namespace saturate
