// SPDX-License-Identifier: Apache-2.0
#include "train/whole_state.h"

namespace saturate::train {

std::unique_ptr<ParameterStore> whole_copy(const ParameterStore& shared) {
  auto whole = std::make_unique<ParameterStore>(Device{}, shared.compute_type());
  for (const ParameterSpec& p : shared.specs()) whole->add(p);
  whole->allocate(shared.purpose());
  return whole;
}

void gather_into(ParameterStore* whole, const ParameterStore& shared, const Stream& stream) {
  for (const StateArray a : kStateArrays) {
    if (saved_name(a) == nullptr) continue;
    std::function<void(ParameterId, const void*)> take;
    if (whole != nullptr) {
      take = [&](ParameterId id, const void* values) {
        if (void* const to = whole->at(a, id))
          copy_to_host(stream, to, values,
                       static_cast<size_t>(whole->spec(id).size()) * size_of(whole->wide_type()));
      };
    }
    shared.visit(stream, a, take);
    stream.synchronize();
  }
}

}  // namespace saturate::train
