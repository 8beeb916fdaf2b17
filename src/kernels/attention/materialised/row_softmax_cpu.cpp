// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/attention/materialised/row_softmax.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
void softmax_rows(const RowSoftmaxArgs& x) {
  parallel_for(x.sequences * x.heads * x.queries, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t query = row % x.queries, unit = row / x.queries;
      const int64_t head = unit % x.heads, sequence = unit / x.heads;
      const int64_t seen = x.causal ? std::min(query + 1, x.keys) : x.keys;
      const T* s = static_cast<const T*>(x.s) + row * x.stride;
      T* p = static_cast<T*>(x.p) + row * x.stride;
      const T top = *std::max_element(s, s + seen);
      T sum = 0;
      for (int64_t j = 0; j < seen; ++j) sum += p[j] = std::exp(s[j] - top);
      for (int64_t j = 0; j < seen; ++j) p[j] /= sum;
      std::fill(p + seen, p + x.keys, T(0));
      static_cast<T*>(x.lse)[head * x.sequences * x.queries + sequence * x.queries + query] =
          top + std::log(sum);
    }
  });
}

}  // namespace

void row_softmax_cpu(const Context&, const RowSoftmaxArgs& x) {
  x.dtype == DType::f64 ? softmax_rows<double>(x) : softmax_rows<float>(x);
}

}  // namespace saturate::kernels
