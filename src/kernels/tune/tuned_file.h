// SPDX-License-Identifier: Apache-2.0
// The file of a tuned table, whatever it is a table of: JSON that a person can read, for one kind
// of GPU, driver and library, and that survives other people's hands.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "kernels/tune/machine.h"

namespace saturate::kernels {

// "gemm" or "attention": the file of `saturate tune <kind>`,
// "<folder>/<kind>-nvidia-h200-9.0.json".
std::string tuned_file_path(const std::string& folder, const char* kind,
                            const TuneMachine& machine);

// The whole file; each entry is one JSON object in one line.
std::string tuned_file_text(const char* kind, const TuneMachine& machine,
                            std::span<const std::string> entries);

// One entry. Errors: JsonFields', which read_tuned_file turns into the problem it returns.
class TunedEntry : public JsonFields {
 public:
  using JsonFields::JsonFields;
  double not_negative(std::string_view key);
  DType type(std::string_view key);  // floating or i32
  // `count` whole numbers from `least`; `rule` says so.
  std::vector<int64_t> whole_numbers(std::string_view key, size_t count, int64_t least,
                                     std::string_view rule);
};

// Calls add(entry) for every entry of the file until one throws Error. Returns "" or one line:
// file, what is wrong, remedy; `exists` says whether there is a file. Never throws for what the
// file holds.
std::string read_tuned_file(const std::string& path, const char* kind, const TuneMachine& machine,
                            bool& exists, const std::function<void(TunedEntry&)>& add);

// Under a lock (path + ".lock"): read() returns read_tuned_file's problem, and text() what to write
// then, by rename. A broken file is kept as path + ".broken".
// Errors    io.
void update_tuned_file(const std::string& path, const std::function<std::string()>& read,
                       const std::function<std::string()>& text);

}  // namespace saturate::kernels
