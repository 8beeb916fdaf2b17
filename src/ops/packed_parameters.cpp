// SPDX-License-Identifier: Apache-2.0
// Matrices laid out for inference on the CPU, each when it is first multiplied with.
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/gemm/packed/packed_linear.h"
#include "ops/parameters.h"

namespace saturate {

struct ParameterStore::Packed {
  Packed(kernels::PackedType t, bool tables_too, size_t count)
      : type(t), tables(tables_too), weights(count), without_master(count) {}
  const kernels::PackedType type;
  const bool tables;
  kernels::PanelMemory memory;
  std::mutex mutex;  // of the pointers; what they point to stays
  std::vector<std::unique_ptr<const kernels::PackedWeights>> weights;
  std::vector<char> without_master;  // by parameter: its master is zeros that nobody has touched
  std::vector<std::shared_ptr<const void>> keepers;  // of panels that are not in `memory`

  void put(ParameterId id, std::unique_ptr<const kernels::PackedWeights> w,
           std::shared_ptr<const void> keeper = {}) {
    const std::lock_guard lock(mutex);
    weights[static_cast<size_t>(id.index)] = std::move(w);
    without_master[static_cast<size_t>(id.index)] = 1;
    if (keeper != nullptr && (keepers.empty() || keepers.back() != keeper))
      keepers.push_back(std::move(keeper));
  }
};

void ParameterStore::pack(kernels::PackedType type, bool tables) {
  SAT_ASSERT(!device_.is_cuda() && compute_type_ == DType::f32);
  packed_ = std::make_shared<Packed>(type, tables, specs_.size());
}

bool ParameterStore::is_packed(ParameterId id) const noexcept {
  if (spec(id).storage != Storage::full) return false;
  return packed_ != nullptr && (spec(id).multiplied || (spec(id).looked_up && packed_->tables));
}

void ParameterStore::pack(
    ParameterId id,
    const std::function<const float*(int64_t first, int64_t count, float* room)>& rows) {
  SAT_ASSERT(is_packed(id));
  const ParameterSpec& s = spec(id);
  packed_->put(id, std::make_unique<kernels::PackedWeights>(packed_->type, s.rows, s.cols, rows,
                                                            &packed_->memory));
}

void ParameterStore::pack(ParameterId id, const char* panels, std::shared_ptr<const void> keeper) {
  SAT_ASSERT(is_packed(id));
  const ParameterSpec& s = spec(id);
  packed_->put(id, std::make_unique<kernels::PackedWeights>(packed_->type, s.rows, s.cols, panels),
               std::move(keeper));
}

const kernels::PackedWeights* ParameterStore::packed(ParameterId id) const {
  if (packed_ == nullptr) return nullptr;
  const std::lock_guard lock(packed_->mutex);
  auto& weights = packed_->weights[static_cast<size_t>(id.index)];
  if (weights == nullptr) {
    const ParameterSpec& s = spec(id);
    weights = std::make_unique<kernels::PackedWeights>(
        packed_->type, static_cast<const float*>(compute(id)), s.rows, s.cols, &packed_->memory);
  }
  return weights.get();
}

size_t ParameterStore::weight_bytes() const {
  size_t sum = 0;
  for (const StateArray a : {StateArray::master, StateArray::compute})
    sum += bytes(a, purpose_) + host_bytes(a, purpose_);
  if (packed_ == nullptr) return sum;
  const std::lock_guard lock(packed_->mutex);
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (packed_->weights[i] != nullptr) sum += packed_->weights[i]->bytes();
    if (packed_->without_master[i] != 0) sum -= held_bytes(ParameterId{static_cast<int32_t>(i)});
  }
  return sum;
}

}  // namespace saturate
