// SPDX-License-Identifier: Apache-2.0
#include "kernels/nf4/nf4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "base/error.h"
#include "kernels/nf4/nf4_impl.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

// By the formulas alone, in doubles.
struct Plain {
  std::vector<double> scales, weights;
};
Plain by_formula(const std::vector<float>& w) {
  Plain p;
  const size_t n = w.size(), blocks = (n + 63) / 64;
  std::vector<double> largest(blocks, 0.0);
  for (size_t i = 0; i < n; ++i)
    largest[i / 64] = std::max(largest[i / 64], std::fabs(static_cast<double>(w[i])));
  const double mean =
      std::accumulate(largest.begin(), largest.end(), 0.0) / static_cast<double>(blocks);
  for (size_t b = 0; b < blocks; ++b) {
    double group = 0;
    for (size_t k = b / 256 * 256; k < std::min(blocks, b / 256 * 256 + 256); ++k)
      group = std::max(group, std::fabs(largest[k] - mean));
    // The nearest value of the map: 0, and of each sign seven decades of 2^d middles, and 1.
    double best = 0, distance = INFINITY;
    for (int code = 0; code < 256; ++code) {
      const double value = decode_signed(nf4_scale_table().values, static_cast<uint8_t>(code));
      const double d = std::fabs(value * group - (largest[b] - mean));
      if (d < distance) distance = d, best = value;
    }
    p.scales.push_back(best * group + mean);
  }
  for (size_t i = 0; i < n; ++i) {
    const double x = w[i] / std::max(largest[i / 64], 1e-38);
    const auto nearest = std::ranges::min_element(
        kNf4Values, {}, [&](float v) { return std::fabs(static_cast<double>(v) - x); });
    p.weights.push_back(*nearest * p.scales[i / 64]);
  }
  return p;
}

std::vector<float> weights_like_a_models(int64_t count) {
  std::vector<float> w;
  const std::vector<double> x = random_values(count, DType::f32, 9),
                            y = random_values(count, DType::f32, 5);
  for (int64_t i = 0; i < count; ++i)
    w.push_back(
        static_cast<float>(0.02 * x[i] * static_cast<double>(1 + (i / 64) % 7) + 0.01 * y[i]));
  return w;
}

class Nf4On : public OnTarget {};

TEST_P(Nf4On, GivesTheNearestOfSixteenValuesOfEachBlock) {
  for (const int64_t count : {1, 63, 64, 129, 64 * 300 + 17}) {
    SCOPED_TRACE(count);
    const std::vector<float> w = weights_like_a_models(count);
    std::vector<char> bytes(static_cast<size_t>(Nf4Layout(count).bytes()), 'x');
    nf4_quantize(w.data(), count, bytes.data());
    const Buffer held(stream().device(), bytes.size());
    copy_to_device(stream(), held.data(), bytes.data(), bytes.size());
    const Guarded y = poison(count);
    nf4_dequantize(ctx(), {.held = held.data(), .w = y.data(), .count = count, .dtype = dtype()});
    const Plain want = by_formula(w);
    Values slack;  // of a scale: rounding of the mean, the difference and its product
    for (int64_t i = 0; i < count; ++i) slack.push_back(4 * 0x1p-23 * want.scales[i / 64]);
    expect_close("w", y.values(), want.weights, unit() / 2, slack);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Nf4On, all_targets(), target_name);

TEST(Nf4, TakesFourAndAnEighthBits) {
  const int64_t count = 4096 * 4096;
  EXPECT_LT(8.0 * static_cast<double>(Nf4Layout(count).bytes()) / static_cast<double>(count), 4.13);
  EXPECT_EQ(Nf4Layout(1).bytes(), 256);
}

// The codes that bitsandbytes 0.50.2 gives these weights; of two values that are as near the lower.
TEST(Nf4, HasTheCodesOfBitsandbytes) {
  std::vector<float> w(64, 0.0f);
  const float some[] = {1.0f,    -1.0f,    0.5f,        -0.5f, 0.04f,
                        0.0397f, -0.0456f, 0.86147844f, 0.9f,  -0.2f};
  std::copy(std::begin(some), std::end(some), w.begin());
  std::vector<uint8_t> held(static_cast<size_t>(Nf4Layout(64).bytes()));
  nf4_quantize(w.data(), 64, held.data());
  const uint8_t* const codes = held.data() + Nf4Layout(64).codes_at();
  EXPECT_EQ(std::vector<int>(codes, codes + 5), (std::vector<int>{0xF0, 0xC2, 0x87, 0x6E, 0xF5}));
}

TEST(Nf4, BlocksOfZerosStayZeros) {
  const std::vector<float> w(200, 0.0f);
  std::vector<char> held(static_cast<size_t>(Nf4Layout(200).bytes()));
  nf4_quantize(w.data(), 200, held.data());
  std::vector<float> y(200, 1.0f);
  nf4_dequantize({}, {.held = held.data(), .w = y.data(), .count = 200});
  EXPECT_EQ(y, w);
}

TEST(Nf4, RefusesWhatIsNotFinite) {
  std::vector<char> held(static_cast<size_t>(Nf4Layout(130).bytes()));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> w(130, 0.5f);
    w[129] = bad;
    EXPECT_THROW(nf4_quantize(w.data(), 130, held.data()), Error);
  }
  float w = 0;
  EXPECT_THROW(nf4_dequantize({}, {.held = nullptr, .w = &w, .count = 1}), Error);
}

}  // namespace
}  // namespace saturate::kernels
