// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/experts/experts_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrainElements = 16384;

// body(row) for all rows; rows are disjoint work.
template <class Body>
void for_rows(int64_t rows, int64_t cols, const Body& body) {
  parallel_for(rows, std::max<int64_t>(1, kGrainElements / cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

template <class T>
T* row_of(void* base, int64_t row, int64_t cols) {
  return static_cast<T*>(base) + row * cols;
}
template <class T>
const T* row_of(const void* base, int64_t row, int64_t cols) {
  return static_cast<const T*>(base) + row * cols;
}

template <class T>
void dispatch_forward(const DispatchRowsArgs& a) {
  for_rows(a.rows, a.cols, [&](int64_t r) {
    for (int64_t j = 0; j < a.k; ++j) {
      const int32_t slot = a.slots[r * a.k + j];
      if (slot >= 0) std::copy_n(row_of<T>(a.x, r, a.cols), a.cols, row_of<T>(a.y, slot, a.cols));
    }
  });
}

template <class T>
void dispatch_backward(const DispatchRowsBackwardArgs& b) {
  const DispatchRowsArgs& a = b.forward;
  for_rows(a.rows, a.cols, [&](int64_t r) {
    T* d_x = row_of<T>(b.d_x, r, a.cols);
    std::fill_n(d_x, a.cols, T(0));
    for (int64_t j = 0; j < a.k; ++j) {
      const int32_t slot = a.slots[r * a.k + j];
      if (slot < 0) continue;
      const T* d_y = row_of<T>(b.d_y, slot, a.cols);
      for (int64_t c = 0; c < a.cols; ++c) d_x[c] += d_y[c];
    }
  });
}

template <class T>
void combine_forward(const CombineRowsArgs& a) {
  for_rows(a.rows, a.cols, [&](int64_t r) {
    T* y = row_of<T>(a.y, r, a.cols);
    std::fill_n(y, a.cols, T(0));
    for (int64_t j = 0; j < a.k; ++j) {
      const int32_t slot = a.slots[r * a.k + j];
      if (slot < 0) continue;
      const T gate = row_of<T>(a.gates, r, a.k)[j];
      const T* x = row_of<T>(a.x, slot, a.cols);
      for (int64_t c = 0; c < a.cols; ++c) y[c] += gate * x[c];
    }
  });
}

template <class T>
void combine_backward(const CombineRowsBackwardArgs& b) {
  const CombineRowsArgs& a = b.forward;
  for_rows(a.rows, a.cols, [&](int64_t r) {
    const T* d_y = row_of<T>(b.d_y, r, a.cols);
    for (int64_t j = 0; j < a.k; ++j) {
      T& d_gate = row_of<T>(b.d_gates, r, a.k)[j];
      d_gate = 0;
      const int32_t slot = a.slots[r * a.k + j];
      if (slot < 0) continue;
      const T gate = row_of<T>(a.gates, r, a.k)[j];
      const T* x = row_of<T>(a.x, slot, a.cols);
      T* d_x = row_of<T>(b.d_x, slot, a.cols);
      T sum = 0;
      for (int64_t c = 0; c < a.cols; ++c) {
        sum += x[c] * d_y[c];
        d_x[c] = gate * d_y[c];
      }
      d_gate = sum;
    }
  });
}

}  // namespace

void dispatch_rows_cpu(const Context&, const DispatchRowsArgs& a) {
  a.dtype == DType::f64 ? dispatch_forward<double>(a) : dispatch_forward<float>(a);
}
void dispatch_rows_backward_cpu(const Context&, const DispatchRowsBackwardArgs& a) {
  a.forward.dtype == DType::f64 ? dispatch_backward<double>(a) : dispatch_backward<float>(a);
}
void combine_rows_cpu(const Context&, const CombineRowsArgs& a) {
  a.dtype == DType::f64 ? combine_forward<double>(a) : combine_forward<float>(a);
}
void combine_rows_backward_cpu(const Context&, const CombineRowsBackwardArgs& a) {
  a.forward.dtype == DType::f64 ? combine_backward<double>(a) : combine_backward<float>(a);
}

}  // namespace saturate::kernels
