// SPDX-License-Identifier: Apache-2.0
#include "ops/computed_rows.h"

#include <utility>

namespace saturate::ops {
namespace {

thread_local const ComputedRows* t_innermost = nullptr;

}  // namespace

ComputedRows::ComputedRows(const int32_t* list, int64_t rows) noexcept
    : before_(std::exchange(t_innermost, this)), list_(list), rows_(rows) {}
ComputedRows::~ComputedRows() { t_innermost = before_; }

const int32_t* ComputedRows::of(int64_t rows) noexcept {
  return t_innermost != nullptr && t_innermost->rows_ == rows ? t_innermost->list_ : nullptr;
}

}  // namespace saturate::ops
