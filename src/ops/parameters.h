// SPDX-License-Identifier: Apache-2.0
// All parameters of a model in flat arrays: one for the fp32 masters, one for gradients, moments
// and so on, so that clipping, AdamW and the all-reduce are a few launches whatever the model.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "parallel/shard_spec.h"
#include "runtime/memory.h"

namespace saturate {

enum class Init : uint8_t { zeros, ones, normal, uniform };

struct ParameterSpec {
  std::string name;  // canonical name, e.g. "encoder.layers.0.self.qkv.weight"
  int64_t rows = 1;  // a vector is (1, cols)
  int64_t cols = 0;
  Init init = Init::zeros;
  float init_scale = 0;  // standard deviation (normal) or bound (uniform)
  bool decay = false;    // whether weight decay applies (matrices)
  bool frozen = false;   // training leaves it as it is; set by ParameterStore::freeze
  // A row of a lookup table that starts at zero and stays zero: ops::embedding gives it no gradient
  // and clears what others have added before. (Weight decay still shrinks a row that was loaded and
  // is not zero.) -1: there is none.
  int64_t zero_row = -1;
  int64_t padding_rows = 0;  // the last rows of a vocabulary's matrix, which no model file holds
  // Rows of each matrix that lies in this one, such as those of q, k and v; of a bias its columns.
  // Empty: it is one matrix. A cut over ranks goes through each of them.
  std::vector<int64_t> blocks = {};
  parallel::ShardSpec shard = {};  // replicated, until another axis of the mesh exceeds 1
  int64_t offset = 0;  // in elements from the start of every flat array; set by ParameterStore::add
  int64_t size() const noexcept { return rows * cols; }
};

struct ParameterId {
  int32_t index = -1;
};

// Two phases: add() every parameter, then allocate(). Not thread safe.
class ParameterStore {
 public:
  // compute is the dtype of matrix products: f32 and f64 use the masters themselves, bf16 and f16 a
  // rounded copy.
  ParameterStore(Device device, DType compute) : device_(device), compute_type_(compute) {}
  // Order of adding is the order in memory; add in forward order, so that backward finishes
  // gradients from the end of the array to its start.
  ParameterId add(ParameterSpec spec);

  // Takes a parameter out of training. Tapes recorded later leave out the work that only its
  // gradient needs; that part of gradients() stays zero, so it counts in no norm.
  void freeze(ParameterId id) { specs_[static_cast<size_t>(id.index)].frozen = true; }

  // Zeroed memory; training also allocates gradients. Tapes recorded before have no memory to run
  // on, but can be planned. Errors: out_of_memory.
  enum class Purpose { training, inference };
  void allocate(Purpose purpose);

  // Draws every parameter from (seed, index of the parameter, element): the same on every device
  // and rank, and unchanged when other parameters come or go after it.
  void initialise(const Stream& stream, uint64_t seed);

  // Whole master of a parameter between host and device (f32 on the host side). Synchronises.
  void set(const Stream& stream, ParameterId id, const float* values);
  void get(const Stream& stream, ParameterId id, float* values) const;
  // All masters at once, values laid out as the flat array. Synchronises.
  void set_all(const Stream& stream, std::span<const float> values);
  // Rounds masters to the compute copy; nothing for f32 and f64.
  void refresh_compute(const Stream& stream);

  const std::vector<ParameterSpec>& specs() const noexcept { return specs_; }
  const ParameterSpec& spec(ParameterId id) const { return specs_[static_cast<size_t>(id.index)]; }
  ParameterId find(const std::string& name) const noexcept;  // index -1 when absent
  int64_t padded_count() const noexcept { return count_; }   // elements of each flat array
  int64_t count() const noexcept;                            // parameters without padding
  int64_t trainable_count() const noexcept;                  // those of them that are not frozen
  DType compute_type() const noexcept { return compute_type_; }
  DType wide_type() const noexcept { return wide_of(compute_type_); }
  Device device() const noexcept { return device_; }

  void* master(ParameterId id) const noexcept { return at(master_, wide_type(), id); }
  void* gradient(ParameterId id) const noexcept { return at(gradient_, wide_type(), id); }
  void* compute(ParameterId id) const noexcept {
    return compute_.data() ? at(compute_, compute_type_, id) : master(id);
  }
  const Buffer& masters() const noexcept { return master_; }
  const Buffer& gradients() const noexcept { return gradient_; }
  const Buffer& computes() const noexcept { return compute_; }  // empty for f32 and f64

 private:
  void* at(const Buffer& b, DType t, ParameterId id) const noexcept {
    return b.data() ? b.as<char>() + static_cast<size_t>(spec(id).offset) * size_of(t) : nullptr;
  }
  std::vector<ParameterSpec> specs_;
  int64_t count_ = 0;
  Device device_;
  DType compute_type_ = DType::f32;
  Buffer master_, gradient_, compute_;
};

}  // namespace saturate
