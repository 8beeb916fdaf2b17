// SPDX-License-Identifier: Apache-2.0
#include "ops/parameter_group.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/elementwise/elementwise.h"

namespace saturate {

namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

void ParameterGroup::begin_unit() {
  // Slices of a unit are whole blocks of the norm, and equal.
  if (sharing_.zero > 0) count_ = round_up(count_, sharing_.ranks.size() * kernels::kNormBlock);
  units_.push_back(count_);
}

void ParameterGroup::make_buckets(int64_t most) {
  begin_unit();  // the end of the last
  for (size_t u = 0; u + 1 < units_.size(); ++u) {
    const parallel::FlatRange unit{units_[u], units_[u + 1]};
    if (unit.begin == unit.end) continue;
    if (!buckets_.empty() && unit.end - buckets_.back().begin <= most) {
      buckets_.back().end = unit.end;
    } else {
      buckets_.push_back(unit);
    }
  }
  owned_ = {{0, count_, 0}};
  if (sharing_.zero > 0) own(owned_ranges(buckets_, sharing_.ranks.size(), sharing_.position));
}

int64_t ParameterGroup::add(int64_t elements) {
  const int64_t offset = count_;
  count_ += round_up(elements, kernels::kParameterAlign);
  owned_ = {{0, count_, 0}};
  return offset;
}

int64_t ParameterGroup::add_factors(int64_t elements) {
  return std::exchange(factors_, factors_ + elements);
}

int64_t ParameterGroup::add_fp8_sites(int64_t elements) {
  return std::exchange(fp8_sites_, fp8_sites_ + elements);
}

size_t ParameterGroup::bucket_of(int64_t offset) const noexcept {
  const auto after = std::ranges::upper_bound(buckets_, offset, {}, &parallel::FlatRange::begin);
  return static_cast<size_t>(after - buckets_.begin()) - 1;
}

bool ParameterGroup::owns_all() const noexcept {
  return count_ == 0 || (owned_.size() == 1 && owned_[0].begin == 0 && owned_[0].end == count_);
}

bool ParameterGroup::keeps(StateArray a, Purpose purpose) const noexcept {
  switch (a) {
    case StateArray::master:
      return storage_ != Storage::compute;
    case StateArray::gradient:
      return kind_ == Kind::trained && purpose != Purpose::inference;
    case StateArray::first_moment:
      return kind_ == Kind::trained && purpose != Purpose::inference &&
             update_ != Update::adafactor;
    case StateArray::second_moment:
      return kind_ == Kind::trained && purpose != Purpose::inference && update_ == Update::adamw;
    case StateArray::factors:
      return kind_ == Kind::trained && purpose != Purpose::inference &&
             update_ == Update::adafactor;
    case StateArray::fp8_sites:
      return fp8_sites_ > 0 && purpose != Purpose::inference;
    case StateArray::average:
      return kind_ == Kind::trained && purpose == Purpose::averaged_training;
    case StateArray::compute:
      if (storage_ != Storage::full) return storage_ == Storage::compute;
      // Products that read the masters themselves need all of them.
      return compute_type_ != wide_of(compute_type_) || sharing_.offload ||
             (holds_ranges(StateArray::master) && sharing_.zero < 3);
    case StateArray::residual:
      return sharing_.coded && kind_ == Kind::trained && purpose != Purpose::inference;
  }
  return false;
}

bool ParameterGroup::holds_ranges(StateArray a) const noexcept {
  if (owns_all() || a == StateArray::factors || a == StateArray::fp8_sites) return false;
  if (a == StateArray::gradient) return sharing_.zero >= 2;
  return a == StateArray::compute ? sharing_.zero >= 3 : true;
}

size_t ParameterGroup::bytes(StateArray a, Purpose purpose) const noexcept {
  if (!keeps(a, purpose)) return 0;
  return bytes_of(a, elements_of(a));
}

int64_t ParameterGroup::elements_of(StateArray a) const noexcept {
  if (a == StateArray::factors) return factors_;
  if (a == StateArray::fp8_sites) return fp8_sites_;
  if (!holds_ranges(a)) return count_;
  return owned_.empty() ? 0 : owned_.back().local + owned_.back().end - owned_.back().begin;
}

size_t ParameterGroup::element_bytes(StateArray a) const noexcept {
  if (storage_ == Storage::nf4) return 1;
  const auto wide = static_cast<int64_t>(size_of(type_of(a)));
  return static_cast<size_t>(kernels::moment_bytes(moments_of(a), wide));
}

size_t ParameterGroup::bytes_of(StateArray a, int64_t elements) const noexcept {
  const bool blocks = moments_of(a) == kernels::MomentType::blocks;
  const size_t scales = blocks ? static_cast<size_t>(elements / kernels::kParameterAlign) : 0;
  return static_cast<size_t>(elements) * element_bytes(a) + scales * sizeof(float);
}

float* ParameterGroup::scales(StateArray a) const noexcept {
  if (moments_of(a) != kernels::MomentType::blocks || array(a).data() == nullptr) return nullptr;
  return reinterpret_cast<float*>(array(a).as<char>() + elements_of(a));
}

void ParameterGroup::refresh_compute(const Context& ctx) const {
  refresh_compute(ctx, owned_, array(StateArray::master).data(), 0);
}

void ParameterGroup::refresh_compute(const Context& ctx, std::span<const OwnedRange> ranges,
                                     const void* masters, int64_t first) const {
  const Block& copy = array(StateArray::compute);
  if (copy.data() == nullptr || masters == nullptr) return;
  const size_t from = size_of(type_of(StateArray::master)), to = size_of(compute_type_);
  for (const OwnedRange& r : ranges) {
    const int64_t place = holds_ranges(StateArray::compute) ? r.local : r.begin;
    kernels::cast(
        ctx, {.x = static_cast<const char*>(masters) + static_cast<size_t>(r.local - first) * from,
              .y = copy.as<char>() + static_cast<size_t>(place) * to,
              .count = r.end - r.begin,
              .x_type = type_of(StateArray::master),
              .y_type = compute_type_});
  }
}

void ParameterGroup::allocate(const Stream& stream, Purpose purpose) {
  for (const StateArray a : kStateArrays) {
    const size_t n = bytes(a, purpose);
    if (n == 0) continue;
    if (in_host(a)) {
      host_arrays_[static_cast<size_t>(a)] = HostBuffer(stream.device(), n);
      continue;
    }
    // The padding between parameters must stay finite.
    arrays_[static_cast<size_t>(a)] = zeroed(stream, n);
  }
}

void* ParameterGroup::at(StateArray a, int64_t offset) const noexcept {
  const Block& held = array(a);
  if (held.data() == nullptr) return nullptr;
  SAT_ASSERT(!holds_ranges(a));
  return held.as<char>() + static_cast<size_t>(offset) * element_bytes(a);
}

}  // namespace saturate
