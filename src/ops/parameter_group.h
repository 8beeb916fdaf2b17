// SPDX-License-Identifier: Apache-2.0
// What is kept of parameters: the flat arrays, how much of each this rank holds, how they are saved.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "kernels/optimizer/moments.h"
#include "ops/owned_ranges.h"
#include "parallel/collective.h"
#include "parallel/mesh.h"
#include "runtime/memory.h"

namespace saturate {

// The flat arrays that there can be. All are in the wide type but `compute`, the copy that matrix
// products read, and the moments (ParameterGroup::hold_moments). Few for a parameter and the same on
// every rank that has it: Adafactor's factors (ops/factors.h), and how the operands of its products are
// scaled in fp8 (kernels::Fp8Site, three for a matrix, in f32).
enum class StateArray : uint8_t {
  master,
  gradient,
  first_moment,
  second_moment,
  factors,
  fp8_sites,
  average,
  compute,
  residual  // of sums that travel in 8 bits (ParameterGroup::Sharing::coded): what has not travelled
};
constexpr StateArray kStateArrays[] = {
    StateArray::master,        StateArray::gradient, StateArray::first_moment,
    StateArray::second_moment, StateArray::factors,  StateArray::fp8_sites,
    StateArray::average,       StateArray::compute,  StateArray::residual};

// How weights that training leaves alone are held: masters and the compute copy; the compute copy
// alone; or 4-bit codes (kernels/nf4/nf4.h) in the place of the masters, a byte an element of the group.
enum class Storage : uint8_t { full, compute, nf4 };

// What a model is held for decides which arrays it has.
enum class Purpose : uint8_t { inference, training, averaged_training };

// A checkpoint calls a parameter's part of an array <name>/<parameter>. Null: the array is in no
// checkpoint, since it is made from the others. The order of kStateArrays is that of the file; the
// residual has a file of its own (train/checkpoint_state.h).
constexpr const char* saved_name(StateArray a) noexcept {
  constexpr const char* kNames[] = {"master", nullptr,   "m",     "v",       "factors",
                                    "fp8",    "average", nullptr, "residual"};
  return kNames[static_cast<size_t>(a)];
}

/// Parameters that are kept alike and whose gradients are summed over the same ranks, one behind the
/// other in arrays of their own, each padded to kParameterAlign elements. Those that training leaves
/// alone have masters and the compute copy only.
class ParameterGroup {
 public:
  enum class Kind : uint8_t { trained, frozen };
  // What changes the parameters of a group in a step: Muon keeps no second moments, Adafactor factors
  // in place of both.
  enum class Update : uint8_t { adamw, muon, adafactor };
  using Axes = std::vector<parallel::MeshAxis>;
  ParameterGroup(Kind kind, DType compute, Axes axes, std::vector<int32_t> holders = {})
      : kind_(kind), compute_type_(compute), axes_(std::move(axes)), holders_(std::move(holders)) {}
  Kind kind() const noexcept { return kind_; }
  // Gradients are summed over the ranks that differ on these axes (ShardSpec::reduce_axes), which
  // hold the same elements; all other ranks hold other elements.
  const Axes& axes() const noexcept { return axes_; }
  // Of parameters that several chunks of a pipeline use: see ParameterSpec::holders.
  const std::vector<int32_t>& holders() const noexcept { return holders_; }

  // How the ranks that hold the same elements share the group's state (Rajbhandari et al.,
  // arXiv:1910.02054), all of them or so many that there are several copies (hybrid sharding, Zhao
  // et al., arXiv:2304.11277). Of what is shared each holds its own ranges alone.
  struct Sharing {
    // 1: masters, moments and average are shared; 2: gradients too; 3: the compute copy too.
    int zero = 0;
    parallel::Group ranks = {.id = -1, .ranks = {0}};  // of one rank: nothing to share
    int position = 0;                                  // of this rank among them
    // Ranks that have the same share of further copies: their sums are added up once a step.
    parallel::Group replicas = {.id = -1, .ranks = {0}};
    // Whether sums over copies of the state travel in 8 bits: over `replicas`, or where every rank
    // keeps all (ParameterStore::Sharing::zero = 0) over `ranks`. What rounding takes from them is
    // kept in StateArray::residual.
    bool coded = false;
    const parallel::Group& copies() const noexcept { return zero == 0 ? ranks : replicas; }
    // The tape reads masters of this group, so they stay whole on every rank.
    bool read_wide = false;
    // Masters, moments and average lie in host memory; the optimizer streams them through the device
    // (StateStream). Operations read the compute copy, which there always is then.
    bool offload = false;
  };
  void update_by(Update update) noexcept { update_ = update; }
  Update update() const noexcept { return update_; }

  // Before the first add(). With nf4 what is added are bytes.
  void hold_as(Storage storage) noexcept { storage_ = storage; }
  Storage storage() const noexcept { return storage_; }

  // Before the first add().
  void share(Sharing sharing) { sharing_ = std::move(sharing); }
  const Sharing& sharing() const noexcept { return sharing_; }

  // Place for a parameter: its offset in every array. Parameters of one unit (a layer) are added one
  // after another; begin_unit() comes before each. Before own() and allocate().
  void begin_unit();
  int64_t add(int64_t elements);
  // Place for factors of a parameter, where Adafactor changes the group.
  int64_t add_factors(int64_t elements);
  // The same for scales of a parameter's products in fp8.
  int64_t add_fp8_sites(int64_t elements);
  // After the last add() of a shared group: makes buckets of neighbouring units, of `most` elements
  // or of one unit, and owns slice `position` of each.
  void make_buckets(int64_t most);
  int64_t count() const noexcept { return count_; }  // elements with padding
  // What is reduced and gathered together; ascending, with no parameter in two of them. All bounds
  // are multiples of ranks * kNormBlock where the state is shared.
  std::span<const parallel::FlatRange> buckets() const noexcept { return buckets_; }

  size_t bucket_of(int64_t offset) const noexcept;

  // This rank updates, holds the moments of, and saves these ranges alone; without a call, all of
  // the group. Before allocate().
  void own(std::vector<OwnedRange> ranges) { owned_ = std::move(ranges); }
  std::span<const OwnedRange> owned() const noexcept { return owned_; }
  bool owns_all() const noexcept;

  // How AdamW's moments are held. Before allocate().
  void hold_moments(kernels::MomentType type) noexcept { moments_ = type; }
  kernels::MomentType moments_of(StateArray a) const noexcept {
    const bool moment = a == StateArray::first_moment || a == StateArray::second_moment;
    return moment ? moments_ : kernels::MomentType::wide;
  }
  // Scales of moments in blocks, behind all codes; null for other arrays.
  float* scales(StateArray a) const noexcept;

  bool keeps(StateArray a, Purpose purpose) const noexcept;
  // Whether the own ranges of an array are here alone, at OwnedRange::local, and not all of it.
  bool holds_ranges(StateArray a) const noexcept;
  // Whether an array lies in host memory, which kernels and copies of the device can reach.
  bool in_host(StateArray a) const noexcept {
    return sharing_.offload && a != StateArray::gradient && a != StateArray::factors &&
           a != StateArray::fp8_sites && a != StateArray::compute && a != StateArray::residual;
  }
  // Of the values; moments may be held in fewer bytes.
  DType type_of(StateArray a) const noexcept {
    if (a == StateArray::fp8_sites) return DType::f32;
    return a == StateArray::compute ? compute_type_ : wide_of(compute_type_);
  }
  size_t element_bytes(StateArray a) const noexcept;
  // What `elements` take, scales of blocks included.
  size_t bytes_of(StateArray a, int64_t elements) const noexcept;
  // Memory of one array on this rank; 0 when it is not kept.
  size_t bytes(StateArray a, Purpose purpose) const noexcept;

  // Rounds masters to the compute copy, where there is one: the own ranges. Enqueued.
  void refresh_compute(const Context& ctx) const;
  // The same for some of the own ranges, whose masters lie in memory that begins at `first` of
  // OwnedRange::local.
  void refresh_compute(const Context& ctx, std::span<const OwnedRange> ranges, const void* masters,
                       int64_t first) const;

  // Zeroed. Errors: out_of_memory.
  void allocate(const Stream& stream, Purpose purpose);
  const Block& array(StateArray a) const noexcept {
    const auto i = static_cast<size_t>(a);
    return in_host(a) ? static_cast<const Block&>(host_arrays_[i]) : arrays_[i];
  }
  // Element `offset` of the group in an array that is whole; null when the array is not there.
  void* at(StateArray a, int64_t offset) const noexcept;

 private:
  int64_t elements_of(StateArray a) const noexcept;  // that this rank has

  Kind kind_;
  DType compute_type_;
  Axes axes_;
  Sharing sharing_;
  Update update_ = Update::adamw;
  Storage storage_ = Storage::full;
  kernels::MomentType moments_ = kernels::MomentType::wide;
  std::vector<int32_t> holders_;
  int64_t count_ = 0, factors_ = 0, fp8_sites_ = 0;
  std::vector<int64_t> units_;  // where they begin
  std::vector<parallel::FlatRange> buckets_;
  std::vector<OwnedRange> owned_;
  std::array<Buffer, std::size(kStateArrays)> arrays_;
  std::array<HostBuffer, std::size(kStateArrays)> host_arrays_;  // those with in_host()
};

}  // namespace saturate
