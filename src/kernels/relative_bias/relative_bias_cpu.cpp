// SPDX-License-Identifier: Apache-2.0
#include "kernels/relative_bias/relative_bias_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
void fill(const RelativeBiasArgs& a) {
  const T* table = static_cast<const T*>(a.table);
  parallel_for(a.heads * a.queries, 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t h = n / a.queries, i = n % a.queries;
      T* to = static_cast<T*>(a.bias) + n * a.keys;
      for (int64_t j = 0; j < a.keys; ++j)
        to[j] = table[int64_t{a.buckets[a.sign * j - i]} * a.heads + h];
    }
  });
}

}  // namespace

void relative_bias_cpu(const Context&, const RelativeBiasArgs& args) {
  args.dtype == DType::f64 ? fill<double>(args) : fill<float>(args);
}

}  // namespace saturate::kernels
