// SPDX-License-Identifier: Apache-2.0
// The loops of AMX with tiles in C++, as the instructions are documented (Intel SDM, TDPBUSD and TDPBF16PS), for
// machines without it: every row, panel and step is where the instruction expects it.
#include "kernels/gemm/packed/packed_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::kernels {
namespace {

using packed::Block;

// Eight tiles of at most 16 rows of 64 bytes; what is outside a tile's rows is not touched.
template <class T>
struct TilesHere {
  using Sum = T;
  std::array<std::array<char, 1024>, 8> data;
  std::array<int64_t, 8> rows{};

  void configure(int64_t upper, int64_t lower) {
    ASSERT_TRUE(upper >= 1 && upper <= 16 && lower >= 0 && lower <= 16);
    rows = {upper, upper, lower, lower, upper, lower, 16, 16};
  }
  template <int I>
  void zero() {
    data[I] = {};
  }
  template <int I>
  void load(const char* from, int64_t stride) {
    for (int64_t r = 0; r < rows[I]; ++r)
      std::memcpy(data[I].data() + r * 64, from + r * stride, 64);
  }
  template <int I>
  void store(T* to) {
    std::memcpy(to, data[I].data(), static_cast<size_t>(rows[I]) * 64);
  }
  template <int S, int X, int W>
  void dot() {
    for (int64_t m = 0; m < rows[S]; ++m) {
      for (int64_t n = 0; n < 16; ++n) {
        T sum;
        char* const at = data[S].data() + m * 64 + n * 4;
        std::memcpy(&sum, at, 4);
        sum = add(sum, data[X].data() + m * 64, data[W].data() + n * 4);
        std::memcpy(at, &sum, 4);
      }
    }
  }
  // 16 groups of four bytes of x, by those of a column.
  static int32_t add(int32_t sum, const char* x, const char* w) {
    for (int64_t k = 0; k < 16; ++k)
      for (int64_t j = 0; j < 4; ++j)
        sum += static_cast<uint8_t>(x[k * 4 + j]) * static_cast<int8_t>(w[k * 64 + j]);
    return sum;
  }
  static float half(const char* at) {
    Bf16 v;
    std::memcpy(&v, at, 2);
    return to_float(v);
  }
  static float add(float sum, const char* x, const char* w) {
    float apart[2] = {};
    for (int64_t k = 0; k < 16; ++k)
      for (int64_t j = 0; j < 2; ++j)
        apart[j] = std::fma(half(x + k * 4 + j * 2), half(w + k * 64 + j * 2), apart[j]);
    return sum + (apart[0] + apart[1]);
  }
};

struct Floats {
  using Float = std::array<float, 16>;
  static constexpr int kWidth = 16;
  static Float load_floats(const float* p) {
    Float f;
    std::copy_n(p, 16, f.begin());
    return f;
  }
  static Float relu(Float f) { return f; }
  static void store(float* p, const Float& f) { std::copy(f.begin(), f.end(), p); }
};

template <class T>
struct SumsHere : Floats {
  using Acc = std::array<T, 16>;
  static Acc load_sums(const T* p) {
    Acc a;
    std::copy_n(p, 16, a.begin());
    return a;
  }
  static Float biased(const Block& b, int64_t row, int64_t column, int, const Acc* sums,
                      Float bias) {
    for (size_t i = 0; i < 16; ++i) {
      const auto at = column + static_cast<int64_t>(i);
      if constexpr (std::is_same_v<T, float>) {
        bias[i] += (*sums)[i];
      } else {
        const float scale = b.row_scale[row] * b.column_scale[at];
        bias[i] = std::fma(static_cast<float>((*sums)[i] - b.column_offset[at]), scale, bias[i]);
      }
    }
    return bias;
  }
};

struct Problem {
  int64_t rows, n, k;
  std::vector<float> x, w, y;
};

Problem make(int64_t rows, int64_t n, int64_t k) {
  Problem p{rows, n, k, {}, {}, std::vector<float>(static_cast<size_t>(rows * n), -7.0f)};
  uint64_t state = 5;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) / 8388608.0f - 1.0f;
  };
  for (int64_t i = 0; i < rows * k; ++i) p.x.push_back(next());
  for (int64_t i = 0; i < n * k; ++i) p.w.push_back(next());
  return p;
}

template <class T>
void multiply(Problem& p, const PackedWeights& w, const void* x, int64_t x_bytes,
              const float* scales) {
  const int64_t panels = (p.n + 15) / 16, steps = x_bytes / 4;
  TilesHere<T> tiles;
  const Block b{.x = x,
                .x_bytes = x_bytes,
                .rows = p.rows,
                .steps = steps,
                .w = w.view().panels,
                .first = 0,
                .last = panels,
                .n = p.n,
                .y = p.y.data(),
                .ldy = p.n,
                .row_scale = scales,
                .column_scale = w.view().scales,
                .column_offset = w.view().offsets};
  packed::multiply_by_tiles<TilesHere<T>, SumsHere<T>>(tiles, b);
}

// One row, one tile, both tiles in part and in full; odd panels and columns over.
const std::array<int64_t, 3> kSizes[] = {{1, 16, 64},   {5, 33, 128},  {16, 64, 64},
                                         {17, 130, 64}, {32, 32, 192}, {45, 300, 64}};

TEST(PackedTiles, BytesGiveTheBitsOfEveryOtherInstructionSet) {
  for (const auto& [rows, n, k] : kSizes) {
    Problem p = make(rows, n, k);
    const PackedWeights w(PackedType::s8, p.w.data(), n, k);
    std::vector<uint8_t> q;
    std::vector<float> scales;
    for (int64_t r = 0; r < rows; ++r) {
      float most = 0;
      for (int64_t i = 0; i < k; ++i)
        most = std::max(most, std::abs(p.x[static_cast<size_t>(r * k + i)]));
      scales.push_back(most / 127.0f);
      for (int64_t i = 0; i < k; ++i)
        q.push_back(static_cast<uint8_t>(
            128 + std::lrintf(p.x[static_cast<size_t>(r * k + i)] * (127.0f / most))));
    }
    multiply<int32_t>(p, w, q.data(), k, scales.data());
    std::vector<float> expected(p.y.size());
    packed_linear({}, {.x = p.x.data(),
                       .w = w.view(),
                       .y = expected.data(),
                       .rows = rows,
                       .ldx = k,
                       .ldy = n,
                       .level = CpuLevel::plain});
    EXPECT_EQ(p.y, expected) << rows << "x" << n << "x" << k;
  }
}

TEST(PackedTiles, HalvesGiveTheSumsOfDoublePrecision) {
  for (const auto& [rows, n, k] : kSizes) {
    Problem p = make(rows, n, k);
    for (auto* v : {&p.x, &p.w})
      for (float& f : *v) f = to_float(to_bf16(f));
    const PackedWeights w(PackedType::bf16, p.w.data(), n, k);
    std::vector<uint16_t> q;  // pairs as in a panel: the earlier in the upper half
    for (size_t i = 0; i < p.x.size(); i += 2) {
      q.push_back(to_bf16(p.x[i + 1]).bits);
      q.push_back(to_bf16(p.x[i]).bits);
    }
    multiply<float>(p, w, q.data(), k * 2, nullptr);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product =
              double{p.x[static_cast<size_t>(r * k + i)]} * p.w[static_cast<size_t>(j * k + i)];
          sum += product, size += std::abs(product);
        }
        ASSERT_NEAR(p.y[static_cast<size_t>(r * n + j)], sum, 6e-8 * static_cast<double>(k) * size)
            << rows << "x" << n << "x" << k << " row " << r << " column " << j;
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
