// SPDX-License-Identifier: Apache-2.0
#include "ops/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/optimizer/optimizer.h"

namespace saturate {
namespace {

constexpr uint32_t kInitOp = 0xFFFFFF;  // no recorded operation reaches this number

// Box-Muller on two 32-bit uniforms; the half keeps the logarithm finite.
double normal_of(uint32_t a, uint32_t b) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(b) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
}

float draw(const ParameterSpec& p, uint64_t seed, uint64_t parameter, int64_t element) {
  switch (p.init) {
    case Init::zeros:
      return 0.0f;
    case Init::ones:
      return 1.0f;
    case Init::normal:
    case Init::uniform: {
      const Random4 r = random_block(seed, parameter, kInitOp, static_cast<uint64_t>(element));
      const double unit = p.init == Init::normal ? normal_of(r.x[0], r.x[1])
                                                 : static_cast<double>(r.x[0]) * 0x1p-31 - 1.0;
      return static_cast<float>(unit * p.init_scale);
    }
  }
  return 0.0f;
}

}  // namespace

ParameterId ParameterStore::add(ParameterSpec spec) {
  SAT_ASSERT(!master_.data() && spec.rows > 0 && spec.cols > 0);
  SAT_ASSERT(find(spec.name).index < 0);
  spec.offset = count_;
  const int64_t align = kernels::kParameterAlign;
  count_ += (spec.size() + align - 1) / align * align;
  specs_.push_back(std::move(spec));
  return {static_cast<int32_t>(specs_.size() - 1)};
}

void ParameterStore::allocate(Purpose purpose) {
  const auto elements = static_cast<size_t>(count_);
  const Stream stream(device_);
  const auto zeroed = [&](size_t bytes) {
    Buffer b(device_, bytes);
    fill_bytes(stream, b.data(), 0, bytes);  // the padding between parameters must stay finite
    return b;
  };
  master_ = zeroed(elements * size_of(wide_type()));
  if (purpose == Purpose::training) gradient_ = zeroed(elements * size_of(wide_type()));
  if (compute_type_ != wide_type()) compute_ = zeroed(elements * size_of(compute_type_));
  stream.synchronize();
}

void ParameterStore::initialise(const Stream& stream, uint64_t seed) {
  std::vector<float> values;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& p = specs_[i];
    values.resize(static_cast<size_t>(p.size()));
    for (int64_t e = 0; e < p.size(); ++e) values[static_cast<size_t>(e)] = draw(p, seed, i, e);
    if (p.zero_row >= 0) std::fill_n(values.begin() + p.zero_row * p.cols, p.cols, 0.0f);
    set(stream, {static_cast<int32_t>(i)}, values.data());
  }
  refresh_compute(stream);
}

void ParameterStore::set(const Stream& stream, ParameterId id, const float* values) {
  const auto n = static_cast<size_t>(spec(id).size());
  if (wide_type() == DType::f64) {
    double* dst = static_cast<double*>(master(id));
    for (size_t i = 0; i < n; ++i) dst[i] = values[i];
    return;
  }
  copy_to_device(stream, master(id), values, n * sizeof(float));
  stream.synchronize();
}

void ParameterStore::get(const Stream& stream, ParameterId id, float* values) const {
  const auto n = static_cast<size_t>(spec(id).size());
  if (wide_type() == DType::f64) {
    const double* src = static_cast<const double*>(master(id));
    for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(src[i]);
    return;
  }
  copy_to_host(stream, values, master(id), n * sizeof(float));
  stream.synchronize();
}

void ParameterStore::set_all(const Stream& stream, std::span<const float> values) {
  SAT_ASSERT(std::ssize(values) == count_);
  if (wide_type() == DType::f64) {
    std::copy(values.begin(), values.end(), master_.as<double>());
    return;
  }
  copy_to_device(stream, master_.data(), values.data(), values.size_bytes());
  stream.synchronize();
}

void ParameterStore::refresh_compute(const Stream& stream) {
  if (!compute_.data()) return;
  Context ctx{device_, stream.native()};
  kernels::cast(ctx, {.x = master_.data(),
                      .y = compute_.data(),
                      .count = count_,
                      .x_type = wide_type(),
                      .y_type = compute_type_});
}

ParameterId ParameterStore::find(const std::string& name) const noexcept {
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].name == name) return {static_cast<int32_t>(i)};
  }
  return {};
}

int64_t ParameterStore::count() const noexcept {
  int64_t n = 0;
  for (const ParameterSpec& p : specs_) n += p.size();
  return n;
}

int64_t ParameterStore::trainable_count() const noexcept {
  int64_t n = 0;
  for (const ParameterSpec& p : specs_) n += p.frozen ? 0 : p.size();
  return n;
}

}  // namespace saturate
