// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "lab/program.h"

namespace saturate::lab {

void Program::finish() {}

std::unique_ptr<Program> make_program(std::string_view name, Remedy, Device) {
  if (name != "launch_batch") find_entry(name);
  throw Error(Errc::unsupported, "lab",
              "this build has no GPU code; build with -DSATURATE_CUDA=ON to run the programs");
}

}  // namespace saturate::lab
