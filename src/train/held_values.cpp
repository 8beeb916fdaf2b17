// SPDX-License-Identifier: Apache-2.0
#include "train/held_values.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/optimizer/optimizer.h"

namespace saturate::train {
namespace {

using kernels::MomentType;
constexpr int64_t kBlock = kernels::kParameterAlign;

const kernels::MomentTables& tables() {
  static const kernels::MomentTables all = kernels::make_moment_tables();
  return all;
}

// f(value of element i) for all of them, in the type of the array.
template <class F>
void each(DType type, const char* values, int64_t elements, const F& f) {
  for (int64_t i = 0; i < elements; ++i)
    f(i, type == DType::f64 ? static_cast<float>(reinterpret_cast<const double*>(values)[i])
                            : reinterpret_cast<const float*>(values)[i]);
}

}  // namespace

HeldValues::HeldValues(const ParameterStore& store, const Stream& stream, int64_t most)
    : store_(store),
      stream_(stream),
      staging_(store.device(), static_cast<size_t>(most) * size_of(store.wide_type())) {}

const char* HeldValues::load(const ParameterGroup& group, StateArray a, char* memory,
                             int64_t elements) {
  const MomentType moments = group.moments_of(a);
  const bool far = store_.device().is_cuda() && !group.in_host(a);
  const char* held = memory;
  if (far) {
    copy_to_host(stream_, staging_.data(), memory,
                 static_cast<size_t>(elements) * group.element_bytes(a));
    stream_.synchronize();
    held = staging_.as<char>();
  }
  if (moments == MomentType::wide) return held;
  wide_.resize(static_cast<size_t>(elements) * size_of(group.type_of(a)));
  const auto put = [&](int64_t i, float value) {
    if (group.type_of(a) == DType::f64) {
      reinterpret_cast<double*>(wide_.data())[i] = value;
    } else {
      reinterpret_cast<float*>(wide_.data())[i] = value;
    }
  };
  if (moments == MomentType::bf16) {
    const auto* codes = reinterpret_cast<const uint16_t*>(held);
    for (int64_t i = 0; i < elements; ++i) put(i, kernels::decode_bf16(codes[i]));
    return wide_.data();
  }
  const int64_t place = memory - group.array(a).as<char>(), first = place / kBlock;
  scales_.resize(static_cast<size_t>((place + elements + kBlock - 1) / kBlock - first));
  copy_to_host(stream_, scales_.data(), group.scales(a) + first, scales_.size() * sizeof(float));
  stream_.synchronize();
  const auto* codes = reinterpret_cast<const uint8_t*>(held);
  const bool with_sign = a == StateArray::first_moment;
  for (int64_t i = 0; i < elements; ++i) {
    const float code = with_sign ? kernels::decode_signed(tables().with_sign, codes[i])
                                 : kernels::decode_plain(tables().plain, codes[i]);
    put(i, scales_[static_cast<size_t>((place + i) / kBlock - first)] * code);
  }
  return wide_.data();
}

void HeldValues::store(const ParameterGroup& group, StateArray a, char* memory, int64_t elements,
                       const char* values) {
  const MomentType moments = group.moments_of(a);
  const DType type = group.type_of(a);
  if (moments == MomentType::wide) {
    copy_to_device(stream_, memory, values, static_cast<size_t>(elements) * size_of(type));
    stream_.synchronize();
    return;
  }
  wide_.resize(static_cast<size_t>(elements) * group.element_bytes(a));
  if (moments == MomentType::bf16) {
    auto* codes = reinterpret_cast<uint16_t*>(wide_.data());
    each(type, values, elements, [&](int64_t i, float value) {
      codes[i] = kernels::encode_bf16(value, kernels::kNearest);
    });
  } else {
    const int64_t place = memory - group.array(a).as<char>(),
                  blocks = (elements + kBlock - 1) / kBlock;
    SAT_ASSERT(place % kBlock == 0);
    std::vector<uint32_t> keys(static_cast<size_t>(blocks));
    each(type, values, elements, [&](int64_t i, float value) {
      uint32_t& key = keys[static_cast<size_t>(i / kBlock)];
      key = std::max(key, kernels::extremum_key(value));
    });
    scales_.resize(keys.size());
    std::ranges::transform(keys, scales_.begin(), kernels::extremum_of);
    auto* codes = reinterpret_cast<uint8_t*>(wide_.data());
    const bool with_sign = a == StateArray::first_moment;
    each(type, values, elements, [&](int64_t i, float value) {
      const float x = value / scales_[static_cast<size_t>(i / kBlock)];
      codes[i] = with_sign ? kernels::encode_signed(tables().with_sign, x, kernels::kNearest)
                           : kernels::encode_plain(tables().plain, x, kernels::kNearest);
    });
    copy_to_device(stream_, group.scales(a) + place / kBlock, scales_.data(),
                   scales_.size() * sizeof(float));
  }
  copy_to_device(stream_, memory, wide_.data(), wide_.size());
  stream_.synchronize();
}

}  // namespace saturate::train
