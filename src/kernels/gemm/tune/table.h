// SPDX-License-Identifier: Apache-2.0
// What `saturate tune gemm` found, as a file and as a lookup: for a matrix product, the
// implementation and configuration that won.
//
// A shape that was not measured takes the choice of its shape class: each of m, n and k rounded to
// the nearest half power of two, so that two shapes of a class differ by at most 1.42 a side.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "kernels/gemm/matmul.h"
#include "kernels/tune/machine.h"

namespace saturate::kernels {

// Everything a measured choice depends on.
struct GemmKey {
  DType ab_type = DType::f32, d_type = DType::f32;
  Transpose ta = Transpose::no, tb = Transpose::no;
  bool tf32 = false, accumulates = false, bias = false;
  bool aligned = false;  // every pointer and row starts on 16 bytes
  int64_t m = 0, n = 0, k = 0;
  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};
GemmKey gemm_key(const MatmulArgs& args) noexcept;
std::string text_of(const GemmKey& key);  // "bf16 NT 16384x3072x1024 + bias"

GemmKey class_of(const GemmKey& key) noexcept;  // m, n, k replaced by their classes

struct GemmChoice {
  std::string impl;       // a name of matmul's list, or of a configured implementation
  std::string config;     // "" for the implementation's own choice
  double ms = 0;          // median when it was measured
  double default_ms = 0;  // of what runs without a table
  friend bool operator==(const GemmChoice&, const GemmChoice&) = default;
};

/// Entries with a lookup by problem. Plain data: const use from several threads is safe.
class GemmTable {
 public:
  void set(const GemmKey& key, GemmChoice choice);
  // The choice measured for this very shape, else that of its class (of several the largest
  // product), else null.
  const GemmChoice* find(const GemmKey& key) const noexcept;
  const std::map<GemmKey, GemmChoice>& entries() const noexcept { return exact_; }
  bool empty() const noexcept { return exact_.empty(); }

 private:
  std::map<GemmKey, GemmChoice> exact_;
  std::map<GemmKey, GemmKey> representative_;  // class -> exact key
};

// The table of one kind of GPU in that folder: "<folder>/gemm-nvidia-h200-9.0.json".
std::string gemm_table_path(const std::string& folder, const TuneMachine& machine);

std::string to_json(const TuneMachine& machine, const GemmTable& table);

struct ReadGemmTable {
  GemmTable table;      // empty when there is a problem
  std::string problem;  // "" or one line: file, what is wrong, remedy
  bool exists = false;
};
// Never throws for what the file holds: a stale, torn or hand-broken file is a `problem`.
ReadGemmTable read_gemm_table(const std::string& path, const TuneMachine& machine);

// Puts `found` over what the file holds, under a lock (path + ".lock") and by rename: two processes
// that tune at once both keep their entries, and a reader sees the old file or the new one. A
// broken file is kept as path + ".broken" and replaced, a stale one replaced.
// Errors    io.
void merge_gemm_table(const std::string& path, const TuneMachine& machine, const GemmTable& found);

}  // namespace saturate::kernels
