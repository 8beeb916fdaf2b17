// SPDX-License-Identifier: Apache-2.0
// All parameters of a model: what each is called, how it starts, where it lies in the flat arrays of
// its group.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "kernels/options.h"
#include "ops/parameter_group.h"
#include "parallel/shard_spec.h"
#include "runtime/memory.h"

namespace saturate::kernels {
enum class BlockFormat : uint8_t;
enum class PackedType : uint8_t;
class PackedWeights;
struct Fp8Site;
}  // namespace saturate::kernels

namespace saturate {

class Layout;

enum class Init : uint8_t { zeros, ones, normal, uniform };

// The parameter of which a store holds a part: its shape, and the part's elements in it, in the
// part's own order. Of a packed matrix (q, k and v; gate and up) they come from each block.
struct WholeParameter {
  int64_t rows = 0, cols = 0;
  std::vector<parallel::ShardRun> runs;
};

struct ParameterSpec {
  std::string name;  // canonical name, e.g. "encoder.layers.0.self.qkv.weight"
  int64_t rows = 1;  // of what this rank holds; a vector is (1, cols)
  int64_t cols = 0;
  Init init = Init::zeros;
  float init_scale = 0;     // standard deviation (normal) or bound (uniform)
  bool decay = false;       // whether weight decay applies (matrices)
  bool frozen = false;      // training leaves it as it is; set by ParameterStore::freeze
  bool elsewhere = false;   // frozen, and in no checkpoint: the model that a run starts from has it
  bool wide = false;        // operations read its master (Tape::wide_parameter): norms, positions
  bool multiplied = false;  // ops::linear() and the like alone read it: see ParameterStore::pack()
  Storage storage = Storage::full;  // set by ParameterStore::quantize_frozen()
  bool looked_up = false;  // the same, and ops::embedding() reads its rows: a vocabulary's table
  // Of the whole parameter, a row of a lookup table that starts at zero and stays zero:
  // ops::embedding gives it no gradient and clears what others have added before. (Weight decay
  // still shrinks a row that was loaded and is not zero.) -1: there is none.
  int64_t zero_row = -1;
  // Of the whole parameter, the last rows of a vocabulary's matrix, which no model file holds.
  int64_t padding_rows = 0;
  // Of the whole parameter, rows of each matrix that lies in it, such as those of q, k and v; of a
  // bias its columns. Empty: it is one matrix. A cut over ranks goes through each of them.
  std::vector<int64_t> blocks = {};
  parallel::ShardSpec shard = {};  // how a mesh cuts it; a cut without blocks takes these
  WholeParameter whole = {};       // set by part_of(); no rows: this is all of it
  // Its place among all parameters of the model: together with an element's place in the whole
  // parameter it decides the first value. Set by ParameterStore::add().
  int64_t number = -1;
  // Pipeline stages whose chunks use it, when there is more than one such chunk: ascending
  // coordinates, of which the first counts it in the norm of the gradients. Its gradient is whole
  // once theirs are added up. Empty: one chunk alone uses it.
  std::vector<int32_t> holders = {};
  // Set by ParameterStore:
  int32_t unit = 0;        // see begin_unit()
  int32_t group = 0;       // of ParameterStore::groups()
  int64_t offset = 0;      // in elements from the start of the group's arrays
  int64_t factors = 0;     // the same in StateArray::factors
  int64_t fp8_sites = -1;  // the same in StateArray::fp8_sites; -1: its products are not in fp8
  int64_t size() const noexcept { return rows * cols; }
};

// What `rank` holds of a whole parameter that knows its number. Errors: those of ShardSpec::check.
ParameterSpec part_of(ParameterSpec whole, const parallel::Mesh& mesh, int rank);

// Bytes of a matrix in 4 bits, where each of the matrices that lie in it is a tensor of its own.
int64_t nf4_bytes(const ParameterSpec& p) noexcept;

struct ParameterId {
  int32_t index = -1;
};

/// Parameters of one model on one device, in groups: one for each set of axes that gradients are
/// summed over, of trained and of frozen parameters. Two phases: add() every parameter and freeze()
/// some, then allocate(). Owns the arrays. Not thread safe.
class ParameterStore {
 public:
  using Purpose = saturate::Purpose;
  // compute is the dtype of matrix products: f32 and f64 use the masters themselves, bf16 and f16 a
  // rounded copy.
  ParameterStore(Device device, DType compute);
  // Order of adding is the order in memory within a group; add in forward order, so that backward
  // finishes gradients from the end of the arrays to their start. Numbers the parameter by its place
  // among all that were added, held or not. An id with index -1 is that of one that is not held.
  ParameterId add(ParameterSpec spec);
  // Whether parameters added from here on are held. Those of other pipeline stages are not.
  void hold(bool held) noexcept { holding_ = held; }
  int64_t added() const noexcept { return added_; }

  // Takes a parameter out of training: it moves to a group that has neither gradients nor moments.
  // Tapes recorded later leave out the work that only its gradient needs.
  void freeze(ParameterId id) { freeze(std::span(&id, 1)); }
  void freeze(std::span<const ParameterId> ids, bool elsewhere = false);

  // From allocate() on frozen matrices that are `multiplied` are held in 4 bits, and what else is frozen
  // in the compute type alone, but for what operations read in full. set() rounds. After the last
  // freeze(), before share(). Ranks that cut matrices cannot have it.
  void quantize_frozen();

  // Parameters added from here on are of another unit than those before: what is used together (a
  // layer, a table) is gathered from the ranks, and its gradient reduced, as one.
  void begin_unit() noexcept { ++unit_; }

  // How the ranks of a layout share the state: what is shared between those that hold the same
  // parameters (ParameterGroup::Sharing), and after how many elements a bucket of gradients closes.
  // After the last add() and freeze(), before allocate(); `layout` outlives this. Without a call
  // each rank keeps all. Parameters whose masters are read stay whole, in a group of their own, and
  // so do frozen ones.
  struct Sharing {
    int zero = 0;
    int64_t bucket_elements = parallel::kBucketElements;
    // 16-bit type in which shared gradients travel, from zero = 2 on; the rank that receives them
    // sums in full. f32: they travel as they are.
    DType reduce = DType::f32;
    // Sums over copies of the state travel in 8 bits (ParameterGroup::Sharing::coded).
    bool coded_copies = false;
  };
  void share(const Layout& layout, const Sharing& sharing);
  // Masters, moments and averages of what trains lie in host memory from allocate() on, but for
  // those of parameters that operations read in full, which get a group of their own. After the last
  // add() and freeze(), before share().
  void offload();
  // muon: it changes the matrices that are `multiplied` and nothing else, which get a group of their
  // own; AdamW all others. adafactor: all that trains. After the last add() and freeze(), before
  // share().
  void update_by(ParameterGroup::Update update);
  // Lists that train multiply in fp8 with matrices that train and are `multiplied` alone, where both
  // sides are multiples of 16. After the last add() and freeze(), before share().
  void multiply_in_fp8();
  // The same in a block-scaled format, where both sides are multiples of 32.
  void multiply_in_blocks(kernels::BlockFormat format);
  // How AdamW's moments are held, from allocate() on. Not together with offload().
  void hold_moments(kernels::MomentType type) noexcept;
  bool is_offloaded() const noexcept { return offload_; }
  const Sharing& sharing() const noexcept { return sharing_; }
  const Layout* layout() const noexcept { return layout_; }
  bool is_shared() const noexcept { return layout_ != nullptr; }

  // Zeroed memory for a purpose. Tapes recorded before have no memory to run on, but can be
  // planned. Errors: out_of_memory.
  void allocate(Purpose purpose);
  // Whether allocate() has been called, so that lists recorded now can run.
  bool allocated() const noexcept {
    return std::ranges::any_of(groups_, [](const ParameterGroup& g) {
      return g.array(StateArray::master).data() != nullptr;
    });
  }
  Purpose purpose() const noexcept { return purpose_; }
  // Memory that allocate() takes for one kind of array: of the device, and of the host.
  size_t bytes(StateArray a, Purpose purpose) const noexcept;
  size_t host_bytes(StateArray a, Purpose purpose) const noexcept;

  // Draws every parameter from (seed, number of the parameter, element of the whole parameter): the
  // same on every device, and for every cut over ranks the part's values of the whole.
  void initialise(const Stream& stream, uint64_t seed);
  // The same for those alone that train.
  void initialise_trained(const Stream& stream, uint64_t seed);

  // Masters of a parameter from the host. Synchronises.
  void set(const Stream& stream, ParameterId id, const float* values);
  // All masters at once, values laid out as the flat array of a store without frozen parameters.
  // Synchronises.
  void set_all(const Stream& stream, std::span<const float> values);
  // A parameter's master or average as floats; out holds as many. Synchronises. Collective over the
  // ranks that share it.
  void get(const Stream& stream, ParameterId id, std::span<float> out,
           StateArray array = StateArray::master) const;
  // What a run ships: the average where there is one, else the masters.
  StateArray shipped() const noexcept {
    return purpose_ == Purpose::averaged_training ? StateArray::average : StateArray::master;
  }
  // Calls take(parameter, its elements, valid for work on `stream` alone: in memory of the device or
  // in_host()) for every parameter that has this array, in the order of groups; of what is frozen an average is the
  // master. Collective over the ranks that share the state: one that needs nothing gives no `take`.
  void visit(const Stream& stream, StateArray array,
             const std::function<void(ParameterId, const void*)>& take) const;
  // The same for the parameters of one group.
  void visit_group(const Stream& stream, int32_t group, StateArray array,
                   const std::function<void(ParameterId, const void*)>& take) const;
  // Masters = what `from`, a store of the same model and type, ships; and their compute copy. What is not
  // held in full is copied as it is held.
  // Enqueued on `stream`. Collective as visit().
  void copy_shipped(const Stream& stream, const ParameterStore& from);
  // Rounds masters to the compute copy; of shared ones the own ranges, which a step gathers first.
  void refresh_compute(const Stream& stream);
  void reset_average(const Stream& stream);  // average = masters, where there is one

  // From here on lists of inference multiply with packed copies of the matrices, made when a list
  // that reads them is first recorded: values must not change after that. On the CPU and in f32 only.
  // `tables`: rows of tables are looked up in their packed copies too, as packing rounded them.
  void pack(kernels::PackedType type, bool tables = false);
  // The same of one that is_packed(), whose values are these rows (PackedWeights::Rows) and
  // nowhere else: its master stays zeros, and takes no memory. After allocate(). Errors: out_of_memory; those of `rows`.
  void pack(ParameterId id,
            const std::function<const float*(int64_t first, int64_t count, float* room)>& rows);
  // The same of panels that lie at `panels` already (PackedWeights::bytes_of), in memory that `keeper` holds.
  void pack(ParameterId id, const char* panels, std::shared_ptr<const void> keeper);
  // The copy; null where pack() was not called. Any thread. Errors: out_of_memory.
  const kernels::PackedWeights* packed(ParameterId id) const;
  bool packs() const noexcept { return packed_ != nullptr; }
  // Whether nothing reads its master any more.
  bool is_packed(ParameterId id) const noexcept;
  // Memory that values take as operations read them: panels, masters that hold something, and the
  // compute copy. Any thread.
  size_t weight_bytes() const;

  const std::vector<ParameterSpec>& specs() const noexcept { return specs_; }
  const ParameterSpec& spec(ParameterId id) const { return specs_[static_cast<size_t>(id.index)]; }
  ParameterId find(const std::string& name) const noexcept;            // index -1 when absent
  int64_t padded_count() const noexcept { return trained().count(); }  // of its arrays
  int64_t count() const noexcept;                                      // parameters without padding
  int64_t trainable_count() const noexcept;  // those of them that are not frozen
  // How lists of operations that are recorded on it choose kernels; set it before they are.
  void set_kernels(kernels::KernelOptions options) { kernels_ = std::move(options); }
  const kernels::KernelOptions& kernels() const noexcept { return kernels_; }
  DType compute_type() const noexcept { return compute_type_; }
  DType wide_type() const noexcept { return wide_of(compute_type_); }
  Device device() const noexcept { return device_; }

  // Trained parameters that no axis cuts come first (all that train, on one rank), frozen ones that
  // no axis cuts are second. Groups may be empty.
  std::span<const ParameterGroup> groups() const noexcept { return groups_; }
  std::span<ParameterGroup> groups() noexcept { return groups_; }
  const ParameterGroup& trained() const noexcept { return groups_[0]; }
  ParameterGroup& trained() noexcept { return groups_[0]; }
  const ParameterGroup& group_of(const ParameterSpec& p) const noexcept {
    return groups_[static_cast<size_t>(p.group)];
  }
  // A parameter's part of an array; null when there is none. The average of a frozen parameter is
  // its master.
  void* at(StateArray a, ParameterId id) const noexcept;
  // Of its input, itself and the gradient of its result; null where its products are not in fp8, or there
  // is no memory yet.
  kernels::Fp8Site* fp8_sites(ParameterId id) const noexcept;
  // In which its products are; none where they are not (multiply_in_blocks).
  std::optional<kernels::BlockFormat> block_format(ParameterId id) const noexcept;
  void* master(ParameterId id) const noexcept { return at(StateArray::master, id); }
  // Elements of a parameter that is held in 4 bits, in the compute type at `to`. Enqueued.
  void dequantize(const Context& ctx, ParameterId id, void* to) const;
  void* gradient(ParameterId id) const noexcept { return at(StateArray::gradient, id); }
  void* compute(ParameterId id) const noexcept {
    const bool copy = group_of(spec(id)).keeps(StateArray::compute, purpose_);
    return at(copy ? StateArray::compute : StateArray::master, id);
  }
  // Whole arrays of the first group.
  const Block& masters() const noexcept { return trained().array(StateArray::master); }
  const Block& gradients() const noexcept { return trained().array(StateArray::gradient); }

 private:
  void place(ParameterSpec& spec);
  void draw(const Stream& stream, uint64_t seed, bool frozen_too);
  // Of parameters that are not held in full: from floats, and to floats.
  void set_held(const Stream& stream, ParameterId id, const float* values);
  void get_held(const Stream& stream, ParameterId id, std::span<float> out) const;
  // Where a parameter's values lie, and their bytes.
  void* held(ParameterId id) const noexcept;
  size_t held_bytes(ParameterId id) const noexcept;
  void begin_groups();

  std::vector<ParameterSpec> specs_;
  int64_t added_ = 0;
  bool holding_ = true;
  Device device_;
  DType compute_type_ = DType::f32;
  kernels::KernelOptions kernels_;
  const Layout* layout_ = nullptr;  // null: the state is not shared
  Sharing sharing_;
  bool offload_ = false, fp8_ = false;
  std::optional<kernels::BlockFormat> blocks_;
  ParameterGroup::Update update_ = ParameterGroup::Update::adamw;
  struct Packed;
  std::shared_ptr<Packed> packed_;  // shared so that its type may be known to the source alone
  int32_t unit_ = 0;
  std::map<int32_t, int32_t> last_unit_;  // by group
  Purpose purpose_ = Purpose::inference;
  std::vector<ParameterGroup> groups_;
};

}  // namespace saturate
