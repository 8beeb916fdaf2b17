// SPDX-License-Identifier: Apache-2.0
#include "train/skewed_routing.h"

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"

namespace saturate::train {
namespace {

constexpr float kBias = 0.5f;     // beside rows of variance 1
constexpr double kSpread = 0.02;  // of a router's random weights: their standard deviation

// A direction of signs that hardly meets what norms leave, rows without a mean.
float sign(int64_t column) {
  return philox4x32(11, static_cast<uint64_t>(column), 0).x[0] & 1u ? 1.0f : -1.0f;
}

}  // namespace

void skew_routing(ParameterStore& store, const Stream& stream, double exponent) {
  const std::string suffix = ".router.weight";
  bool found = false;
  for (int32_t i = 0; i < static_cast<int32_t>(store.specs().size()); ++i) {
    const ParameterSpec& router = store.spec({i});
    if (!router.name.ends_with(suffix)) continue;
    found = true;
    const std::string mixer = router.name.substr(0, router.name.size() - suffix.size());
    const ParameterId bias = store.find(mixer + "_norm.bias");
    if (bias.index < 0)
      throw Error(Errc::invalid_argument, "bench",
                  "--skew: " + mixer +
                      " has no layer norm with a bias; take a model that has (model.norm = layer)");
    const auto columns = static_cast<size_t>(router.cols);
    std::vector<float> biases(columns), weights;
    for (size_t c = 0; c < columns; ++c) biases[c] = kBias * sign(static_cast<int64_t>(c));
    // The chance in a logit is normal; a Gumbel of the same variance would make the law exact.
    const double width = static_cast<double>(router.cols);
    const double deviation = kSpread * std::sqrt(width * (1 + kBias * kBias));
    const double unit = deviation * std::sqrt(6.0) / std::numbers::pi;
    for (int64_t e = 0; e < router.rows; ++e) {
      const size_t row = weights.size();
      double along = 0;  // of the random weights, the direction that all rows have: as if not drawn
      for (int64_t c = 0; c < router.cols; ++c) {
        // Two uniform numbers of variance 1/12 each make one of the wanted variance.
        const Random4 drawn =
            philox4x32(13, static_cast<uint64_t>(e * router.cols + c), static_cast<uint64_t>(i));
        const double uniform =
            (static_cast<double>(drawn.x[0]) + static_cast<double>(drawn.x[1])) * 0x1p-32 - 1;
        weights.push_back(static_cast<float>(kSpread * std::sqrt(6.0) * uniform));
        along += static_cast<double>(weights.back() * sign(c));
      }
      const double preferred = -exponent * std::log(static_cast<double>(e + 1)) * unit / kBias;
      for (size_t c = 0; c < columns; ++c)
        weights[row + c] +=
            static_cast<float>((preferred - along) / width) * sign(static_cast<int64_t>(c));
    }
    store.set(stream, {i}, weights.data());
    store.set(stream, bias, biases.data());
  }
  if (!found)
    throw Error(Errc::invalid_argument, "bench",
                "--skew is for models with experts; set model.experts, or leave it out");
}

}  // namespace saturate::train
