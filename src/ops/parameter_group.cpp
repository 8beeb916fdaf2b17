// SPDX-License-Identifier: Apache-2.0
#include "ops/parameter_group.h"

#include "base/error.h"

namespace saturate {

int64_t ParameterGroup::add(int64_t elements) {
  constexpr int64_t kAlign = kernels::kParameterAlign;
  const int64_t offset = count_;
  count_ += (elements + kAlign - 1) / kAlign * kAlign;
  owned_ = {{0, count_, 0}};
  return offset;
}

bool ParameterGroup::owns_all() const noexcept {
  return count_ == 0 || (owned_.size() == 1 && owned_[0].begin == 0 && owned_[0].end == count_);
}

bool ParameterGroup::keeps(StateArray a, Purpose purpose) const noexcept {
  switch (a) {
    case StateArray::master:
      return true;
    case StateArray::gradient:
    case StateArray::first_moment:
    case StateArray::second_moment:
      return kind_ == Kind::trained && purpose != Purpose::inference;
    case StateArray::average:
      return kind_ == Kind::trained && purpose == Purpose::averaged_training;
    case StateArray::compute:
      return compute_type_ != wide_of(compute_type_);
  }
  return false;
}

size_t ParameterGroup::bytes(StateArray a, Purpose purpose) const noexcept {
  if (!keeps(a, purpose)) return 0;
  int64_t elements = count_;
  if (saved_name(a) != nullptr && !owns_all()) {
    elements = owned_.empty() ? 0 : owned_.back().local + owned_.back().end - owned_.back().begin;
  }
  return static_cast<size_t>(elements) * size_of(type_of(a));
}

void ParameterGroup::allocate(const Stream& stream, Purpose purpose) {
  for (const StateArray a : kStateArrays) {
    const size_t n = bytes(a, purpose);
    if (n == 0) continue;
    Buffer& array = arrays_[static_cast<size_t>(a)];
    array = Buffer(stream.device(), n);
    fill_bytes(stream, array.data(), 0, n);  // the padding between parameters must stay finite
  }
}

void* ParameterGroup::at(StateArray a, int64_t offset) const noexcept {
  const Buffer& held = array(a);
  if (held.data() == nullptr) return nullptr;
  SAT_ASSERT(saved_name(a) == nullptr || owns_all());
  return held.as<char>() + static_cast<size_t>(offset) * size_of(type_of(a));
}

}  // namespace saturate
