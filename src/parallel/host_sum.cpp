// SPDX-License-Identifier: Apache-2.0
#include "parallel/host_sum.h"

#include "base/half.h"

namespace saturate::parallel {
namespace {

double sum(double a, double b) { return a + b; }
float sum(float a, float b) { return a + b; }
Bf16 sum(Bf16 a, Bf16 b) { return to_bf16(to_float(a) + to_float(b)); }
F16 sum(F16 a, F16 b) { return to_f16(to_float(a) + to_float(b)); }
// Wraps like the GPU's, where signed arithmetic would be undefined.
int32_t sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

template <class T>
void add(void* into, const void* from, int64_t count) {
  auto* a = static_cast<T*>(into);
  const auto* b = static_cast<const T*>(from);
  for (int64_t i = 0; i < count; ++i) a[i] = sum(a[i], b[i]);
}

}  // namespace

void add_into(DType dtype, void* into, const void* from, int64_t count) {
  switch (dtype) {
    case DType::f64:
      return add<double>(into, from, count);
    case DType::f32:
      return add<float>(into, from, count);
    case DType::bf16:
      return add<Bf16>(into, from, count);
    case DType::f16:
      return add<F16>(into, from, count);
    case DType::i32:
      return add<int32_t>(into, from, count);
  }
}

}  // namespace saturate::parallel
