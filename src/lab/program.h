// SPDX-License-Identifier: Apache-2.0
// Small GPU programs with one planted bottleneck each, which measure by themselves what it costs:
// to see a diagnosis, and to hold the doctor to it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "lab/marks.h"
#include "runtime/device.h"

namespace saturate::lab {

enum class Remedy : uint8_t { none, applied };

// One step after the other on the current device; made by make_program.
class Program {
 public:
  virtual ~Program() = default;
  // Enqueues, and where that is the point waits for, one step. Not thread safe.
  virtual void step() = 0;
  // Waits until the device is done with all steps.
  void finish();
  // The planted parts of the steps since Marks::clear, or null where they follow from `alone`.
  virtual Marks* marks() { return nullptr; }
  // Enqueues a step of the same work without what is planted. Returns    whether the program can;
  // false by default.
  virtual bool alone() { return false; }
};

struct Entry {
  std::string_view name;
  std::string_view planted;  // what is wrong, one sentence
  std::string_view remedy;   // what Remedy::applied changes; empty: nothing is wrong
  std::string_view verdict;  // of `saturate doctor`: id of the cause that must come first
};

// All programs, in the order of `saturate lab list`. The same with and without CUDA.
std::span<const Entry> catalogue();

// Errors    invalid_argument: unknown name, with the nearest one; unsupported: a build without
// CUDA, or no GPU.
const Entry& find_entry(std::string_view name);
std::unique_ptr<Program> make_program(std::string_view name, Remedy remedy, Device device);

}  // namespace saturate::lab
