// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/adapters/keep_columns_impl.h"

namespace saturate::kernels {
namespace {

template <class T>
void keep(const KeepColumnsArgs& a) {
  const int64_t cols = a.begins[static_cast<size_t>(a.groups)];
  for (int64_t r = 0; r < a.rows; ++r) {  // a few columns: no work for a second thread
    T* x = static_cast<T*>(a.x) + r * cols;
    const int32_t g = a.group_of_row[r * a.group_stride];
    const bool none = g < 0 || g >= a.groups;
    const int64_t begin = none ? cols : a.begins[static_cast<size_t>(g)],
                  end = none ? cols : a.begins[static_cast<size_t>(g) + 1];
    std::fill(x, x + begin, T(0));
    std::fill(x + end, x + cols, T(0));
  }
}

}  // namespace

void keep_columns_cpu(const Context&, const KeepColumnsArgs& args) {
  args.dtype == DType::f64 ? keep<double>(args) : keep<float>(args);
}

}  // namespace saturate::kernels
