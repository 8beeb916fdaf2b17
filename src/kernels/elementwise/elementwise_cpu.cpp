// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/half.h"
#include "kernels/elementwise/elementwise_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrainElements = 32768;

template <class T>
void add_of(const AddArgs& args) {
  parallel_for(args.count, kGrainElements, [&args](int64_t begin, int64_t end) {
    const T* a = static_cast<const T*>(args.a);
    const T* b = static_cast<const T*>(args.b);
    T* y = static_cast<T*>(args.y);
    if (args.b_count == 0) {
      for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
      return;
    }
    for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i % args.b_count];
  });
}

template <class T>
void soft_cap_of(const SoftCapArgs& a) {
  parallel_for(a.count, kGrainElements / 8, [&a](int64_t begin, int64_t end) {
    const T* x = static_cast<const T*>(a.x);
    T* y = static_cast<T*>(a.y);
    const T cap = static_cast<T>(a.cap);
    for (int64_t i = begin; i < end; ++i) y[i] = cap * std::tanh(x[i] / cap);
  });
}

template <class To, class From>
inline To convert(From v) {
  if constexpr (std::is_same_v<To, From>) {
    return v;
  } else if constexpr (!std::is_floating_point_v<From>) {
    return convert<To>(to_float(v));
  } else if constexpr (std::is_same_v<To, Bf16>) {
    return to_bf16(round_to_odd(v));
  } else if constexpr (std::is_same_v<To, F16>) {
    return to_f16(round_to_odd(v));
  } else {
    return static_cast<To>(v);
  }
}

template <class From, class To>
void cast_of(const CastArgs& args) {
  parallel_for(args.count, kGrainElements, [&args](int64_t begin, int64_t end) {
    const From* x = static_cast<const From*>(args.x);
    To* y = static_cast<To*>(args.y);
    for (int64_t i = begin; i < end; ++i) y[i] = convert<To>(x[i]);
  });
}

template <class From>
void cast_from(const CastArgs& args) {
  switch (args.y_type) {
    case DType::f64:
      return cast_of<From, double>(args);
    case DType::f32:
      return cast_of<From, float>(args);
    case DType::bf16:
      return cast_of<From, Bf16>(args);
    case DType::f16:
      return cast_of<From, F16>(args);
    case DType::i32:
      return;  // refused by cast()
  }
}

template <class T>
void column_sum_of(const ColumnSumArgs& a) {
  const int64_t groups = std::min(kColumnSumCpuGroups, a.rows);
  T* partial = static_cast<T*>(a.partial);
  const int64_t per_group = a.rows * a.cols / std::max<int64_t>(1, groups);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, per_group));
  parallel_for(groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      T* sums = partial + g * a.cols;
      std::fill_n(sums, a.cols, T(0));
      for (int64_t r = a.rows * g / groups; r < a.rows * (g + 1) / groups; ++r) {
        const T* x = static_cast<const T*>(a.x) + r * a.ld;
        for (int64_t c = 0; c < a.cols; ++c) sums[c] += x[c];
      }
    }
  });
  T* out = static_cast<T*>(a.out);
  if (!a.accumulate) std::fill_n(out, a.cols, T(0));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < a.cols; ++c) out[c] += partial[g * a.cols + c];
  }
}

}  // namespace

void add_cpu(const Context&, const AddArgs& args) {
  args.dtype == DType::f64 ? add_of<double>(args) : add_of<float>(args);
}

void soft_cap_cpu(const Context&, const SoftCapArgs& args) {
  args.dtype == DType::f64 ? soft_cap_of<double>(args) : soft_cap_of<float>(args);
}

void cast_cpu(const Context&, const CastArgs& args) {
  switch (args.x_type) {
    case DType::f64:
      return cast_from<double>(args);
    case DType::f32:
      return cast_from<float>(args);
    case DType::bf16:
      return cast_from<Bf16>(args);
    case DType::f16:
      return cast_from<F16>(args);
    case DType::i32:
      return;  // refused by cast()
  }
}

void column_sum_cpu(const Context&, const ColumnSumArgs& args) {
  args.dtype == DType::f64 ? column_sum_of<double>(args) : column_sum_of<float>(args);
}

}  // namespace saturate::kernels
