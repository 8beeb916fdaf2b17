// SPDX-License-Identifier: Apache-2.0
// Products of packed weights in plain C++: on processors that no other file is for, and the
// yardstick of the others, bit for bit.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/gemm/packed/packed_bf16.h"
#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

template <class T>
struct Lanes {
  T v[kPanel];
};

struct Plain {
  using Acc = Lanes<float>;
  using Float = Lanes<float>;
  using Element = float;
  using Weights = const float*;
  static constexpr int kWidth = kPanel, kVectors = 1, kRows = 4;
  static constexpr int64_t kElementBytes = 4;
  template <int R>
  static constexpr int panels() {
    return 1;
  }
  static Acc zero() { return {}; }
  static Element broadcast(const char* p) { return *reinterpret_cast<const float*>(p); }
  static Weights load(const char* p, int) { return reinterpret_cast<const float*>(p); }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    for (int64_t i = 0; i < kPanel; ++i) sum.v[i] = std::fma(x, w[i], sum.v[i]);
    return sum;
  }
  static Float load_floats(const float* p) {
    Float f;
    std::memcpy(f.v, p, sizeof(f.v));
    return f;
  }
  static Float biased(const Block&, int64_t, int64_t, int, const Acc* sums, Float bias) {
    for (int64_t i = 0; i < kPanel; ++i) bias.v[i] = sums[0].v[i] + bias.v[i];
    return bias;
  }
  static Float relu(Float f) {
    for (float& v : f.v) v = v < 0 ? 0 : v;
    return f;
  }
  static void store(float* p, const Float& f) { std::memcpy(p, f.v, sizeof(f.v)); }
};

struct PlainBf16 : Plain {
  using Element = const float*;
  using Weights = const uint32_t*;
  static constexpr int64_t kElementBytes = 8;
  static Element broadcast(const char* p) { return reinterpret_cast<const float*>(p); }
  static Weights load(const char* p, int) { return reinterpret_cast<const uint32_t*>(p); }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    for (int64_t i = 0; i < kPanel; ++i) {
      const auto first = std::bit_cast<float>(w[i] & 0xffff0000u);
      const auto second = std::bit_cast<float>(w[i] << 16);
      sum.v[i] = std::fma(x[1], second, std::fma(x[0], first, sum.v[i]));
    }
    return sum;
  }
};

struct PlainWords : Plain {
  using Acc = Lanes<int32_t>;
  using Element = const int16_t*;
  using Weights = const int8_t*;
  static constexpr int64_t kElementBytes = 8;
  static Acc zero() { return {}; }
  static Element broadcast(const char* p) { return reinterpret_cast<const int16_t*>(p); }
  static Weights load(const char* p, int) { return reinterpret_cast<const int8_t*>(p); }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    for (int64_t i = 0; i < kPanel; ++i) {
      for (int64_t j = 0; j < 4; ++j) sum.v[i] += x[j] * w[4 * i + j];
    }
    return sum;
  }
  static Float biased(const Block& b, int64_t row, int64_t column, int, const Acc* sums,
                      Float bias) {
    for (int64_t i = 0; i < kPanel; ++i) {
      const float scale = b.row_scale[row] * b.column_scale[column + i];
      bias.v[i] = std::fma(static_cast<float>(sums[0].v[i]), scale, bias.v[i]);
    }
    return bias;
  }
};

}  // namespace

void f32_plain(const Block& b) { multiply<Plain>(b); }
void s8_plain(const Block& b) { multiply<PlainWords>(b); }
void bf16_plain(const Block& b) {
  const NoDenormals zeros;
  multiply<PlainBf16>(b);
}

}  // namespace saturate::kernels::packed
