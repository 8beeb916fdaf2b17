// SPDX-License-Identifier: Apache-2.0
// How AdamW's moments are held, the same code on the CPU and on the GPU.
//
// bf16      two bytes; rounded stochastically, so that the mean of many small changes survives.
// blocks    one byte, and a scale in f32 for each kParameterAlign elements: the element that is
//           largest by magnitude, with its sign. value = scale * code, code from a dynamic map: seven
//           decades, each with twice as many values as the one below it.
//
// Order     a rounding draws from (seed, step, parameter, element), so that it is the same whatever
//           order or rank it is done by (base/philox.h).
// Source    Dettmers et al., arXiv:2110.02861, sections 2 and 3 (dynamic map, blocks; theirs divides
//           by the magnitude alone, which holds a negative extremum 0.7% short). That a positive
//           second moment never becomes zero: Li et al., arXiv:2309.01507, section 4.1.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/philox.h"

namespace saturate::kernels {

enum class MomentType : uint8_t { wide, bf16, blocks };

// Which elements a piece of kParameterAlign elements has in its parameter, for random numbers.
struct PieceName {
  uint32_t parameter = 0;  // ParameterSpec::number
  uint32_t piece = 0;      // of the parameter's part on this rank
};

// Bytes of one element, without scales.
constexpr int64_t moment_bytes(MomentType t, int64_t wide) noexcept {
  return t == MomentType::wide ? wide : (t == MomentType::bf16 ? 2 : 1);
}

// Values of one sign, ascending: decade d of 7 has `kFirst << d`, the middles of as many equal parts
// of [0.1, 1] * 10^(d - 6); the last is 1. kFirst is 1 beside a sign, 2 without.
template <int kFirst>
struct DynamicMap {
  static constexpr int kDecades = 7, kValues = kFirst * 127 + 1;

  // One rounding, of a quotient of whole numbers: the same bits everywhere.
  SAT_HD static float value(int i) {
    int decade = 0, first = 0;
    while (i >= first + (kFirst << decade)) first += kFirst << decade++;
    if (decade >= kDecades) return 1.0f;
    const int64_t n = kFirst << decade, k = i - first;
    int64_t power = 1;
    for (int d = decade; d < kDecades - 1; ++d) power *= 10;
    return static_cast<float>(static_cast<double>(2 * n + 18 * k + 9) /
                              static_cast<double>(20 * n * power));
  }

  // The largest value that is not above x in (0, 1]; -1: all are above it. `table` has all values.
  SAT_HD static int below(const float* table, float x) {
    int decade = 0;
    float power = 1e6f;
    if (x > 1e-6f) decade = 1, power = 1e5f;
    if (x > 1e-5f) decade = 2, power = 1e4f;
    if (x > 1e-4f) decade = 3, power = 1e3f;
    if (x > 1e-3f) decade = 4, power = 1e2f;
    if (x > 1e-2f) decade = 5, power = 1e1f;
    if (x > 1e-1f) decade = 6, power = 1.0f;
    const int n = kFirst << decade, first = kFirst * ((1 << decade) - 1);
    // Near enough; the table has the last word.
    const float part = (x * power - 0.1f) * (static_cast<float>(n) / 0.9f) - 0.5f;
    int i = first + static_cast<int>(part < -1.0f ? -1.0f : floorf(part));
    if (i > kValues - 1) i = kValues - 1;
    while (i + 1 < kValues && table[i + 1] <= x) ++i;
    while (i >= 0 && table[i] > x) --i;
    return i;
  }
};
using SignedMap = DynamicMap<1>;
using PlainMap = DynamicMap<2>;

struct MomentTables {
  float with_sign[SignedMap::kValues];
  float plain[PlainMap::kValues];
};
inline MomentTables make_moment_tables() {
  MomentTables t;
  for (int i = 0; i < SignedMap::kValues; ++i) t.with_sign[i] = SignedMap::value(i);
  for (int i = 0; i < PlainMap::kValues; ++i) t.plain[i] = PlainMap::value(i);
  return t;
}

// 16 random bits decide; `kNearest` for values that are on the map but for a rounding.
constexpr uint32_t kNearest = 1u << 16;

// Whether x between neighbours low and high goes up.
SAT_HD bool rounds_up(float x, float low, float high, uint32_t random) {
  if (random == kNearest) return x - low > high - x;
  return static_cast<float>(random) * (high - low) < (x - low) * 65536.0f;
}

// First moments, x = value / scale in [-1, 1]: 0, 1 .. 128 for the values, 129 .. 255 for the 127
// smallest of them below zero. One extremum has the sign of the scale, so -1 needs no code.
SAT_HD uint8_t encode_signed(const float* table, float x, uint32_t random) {
  const float size = fabsf(x);
  if (!(size > 0.0f)) return 0;
  const int most = SignedMap::kValues - (x < 0 ? 2 : 1);
  int i = SignedMap::below(table, size < 1.0f ? size : 1.0f);
  if (i >= most) {
    i = most;
  } else if (rounds_up(size, i < 0 ? 0.0f : table[i], table[i + 1], random)) {
    ++i;
  }
  return static_cast<uint8_t>(i < 0 ? 0 : (x < 0 ? 129 + i : 1 + i));
}
SAT_HD float decode_signed(const float* table, uint8_t code) {
  if (code == 0) return 0.0f;
  return code > SignedMap::kValues ? -table[code - 129] : table[code - 1];
}

// Second moments, x in [0, 1]; what is above zero stays so.
SAT_HD uint8_t encode_plain(const float* table, float x, uint32_t random) {
  if (!(x > 0.0f)) return 0;
  int i = PlainMap::below(table, x < 1.0f ? x : 1.0f);
  if (i < 0) return 1;
  if (i + 1 < PlainMap::kValues && rounds_up(x, table[i], table[i + 1], random)) ++i;
  return static_cast<uint8_t>(1 + i);
}
SAT_HD float decode_plain(const float* table, uint8_t code) {
  return code == 0 ? 0.0f : table[code - 1];
}

// The value below or above, or the nearest one (ties away from zero); infinities and NaN stay.
SAT_HD uint16_t encode_bf16(float x, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7F800000u) == 0x7F800000u)
    return static_cast<uint16_t>((bits >> 16) | ((bits & 0xFFFFu) != 0));
  return static_cast<uint16_t>((bits + (random == kNearest ? 0x8000u : random)) >> 16);
}
SAT_HD float decode_bf16(uint16_t code) {
  const uint32_t bits = static_cast<uint32_t>(code) << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Numbers whose largest is the value that is largest by magnitude; of +x and -x, -x.
SAT_HD uint32_t extremum_key(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits << 1 | bits >> 31;
}
SAT_HD float extremum_of(uint32_t key) {
  const uint32_t bits = key >> 1 | key << 31;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// For elements 4 * quad .. 4 * quad + 3 of a piece: 16 bits for m (low) and v (high) of each.
SAT_HD Random4 moment_random(uint64_t seed, int64_t step, PieceName name, int quad) {
  constexpr uint64_t kOfMoments = 0x6D6F6D656E747321ull;  // no mask is drawn with this seed
  return random_block(seed ^ kOfMoments, static_cast<uint64_t>(step), name.parameter,
                      static_cast<uint64_t>(name.piece) * 64 + static_cast<uint64_t>(quad));
}

}  // namespace saturate::kernels
