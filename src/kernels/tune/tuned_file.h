// SPDX-License-Identifier: Apache-2.0
// The file of a tuned table, whatever it is a table of: JSON that a person can read, for one kind
// of GPU, driver and library, and that survives other people's hands.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/tune/machine.h"

namespace saturate::kernels {

// "gemm" or "attention": the file of `saturate tune <kind>`,
// "<folder>/<kind>-nvidia-h200-9.0.json".
std::string tuned_file_path(const std::string& folder, const char* kind,
                            const TuneMachine& machine);

// The whole file; each entry is one JSON object in one line.
std::string tuned_file_text(const char* kind, const TuneMachine& machine,
                            std::span<const std::string> entries);

// One entry. The getters remember the first field that is missing or of the wrong kind.
class TunedEntry {
 public:
  explicit TunedEntry(const std::string& json);
  ~TunedEntry();
  TunedEntry(TunedEntry&&) noexcept;

  bool is_object() const;
  std::string text(const char* name);
  bool flag(const char* name);
  double number(const char* name);              // from 0
  std::optional<DType> type(const char* name);  // floating or i32
  // `count` whole numbers from `least`; `rule` says so. Empty when they are not.
  std::vector<int64_t> whole_numbers(const char* name, size_t count, int64_t least,
                                     const char* rule);
  void fail(const char* name, const char* rule);
  const std::string& problem() const;

 private:
  struct Fields;
  std::unique_ptr<Fields> fields_;
};

// Calls add(entry) for every entry of the file until one returns a problem. Returns "" or one line:
// file, what is wrong, remedy; `exists` says whether there is a file. Never throws for what the
// file holds.
std::string read_tuned_file(const std::string& path, const char* kind, const TuneMachine& machine,
                            bool& exists, const std::function<std::string(TunedEntry&)>& add);

// Under a lock (path + ".lock"): read() returns read_tuned_file's problem, and text() what to write
// then, by rename. A broken file is kept as path + ".broken".
// Errors    io.
void update_tuned_file(const std::string& path, const std::function<std::string()>& read,
                       const std::function<std::string()>& text);

}  // namespace saturate::kernels
