// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace saturate::ops {

/// While one lives, what linear() and activated_linear() record in this thread with packed weights and
/// `rows` rows computes the rows alone that are listed when it runs (kernels::PackedLinearArgs::listed).
/// For steps some of whose rows nobody reads; the list outlives the tape.
class ComputedRows {
 public:
  ComputedRows(const int32_t* list, int64_t rows) noexcept;
  ~ComputedRows();
  ComputedRows(const ComputedRows&) = delete;
  ComputedRows& operator=(const ComputedRows&) = delete;

  // The list for an operation of so many rows recorded here and now; null: there is none.
  static const int32_t* of(int64_t rows) noexcept;

 private:
  const ComputedRows* const before_;
  const int32_t* const list_;
  const int64_t rows_;
};

}  // namespace saturate::ops
