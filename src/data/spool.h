// SPDX-License-Identifier: Apache-2.0
// Copies of inputs that give their bytes once, for work that reads a corpus several times.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/interrupt.h"

namespace saturate::data {

// Standard input ("-"), a FIFO such as the shell's <(...), a terminal or another device. False for
// what is not there.
bool is_read_once(const std::string& path);

struct SpoolItem {
  std::string from, to;
};

// Copies every item as it is to a new file. All inputs are read at the same time, so that one
// program may write to several of them in any order; neither a FIFO that nobody writes to nor a
// silent writer keeps an interrupt waiting. `progress`, called several times a second, gets the
// bytes read so far. Errors: Error{io}; invalid_argument for an input that ends without a byte;
// Interrupted. After an error none of the copies that were not whole is left.
void spool(const std::vector<SpoolItem>& items, const Interrupt& interrupt,
           const std::function<void(int64_t bytes)>& progress = {});

}  // namespace saturate::data
