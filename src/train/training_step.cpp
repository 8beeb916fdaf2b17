// SPDX-License-Identifier: Apache-2.0
#include "train/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/gemm/matmul.h"
#include "train/frozen.h"
#include "train/loss_tape.h"

namespace saturate::train {
namespace {

// Steps whose times are kept: more than the host is ever ahead of the device by.
constexpr size_t kTimedSteps = 64;
constexpr int64_t kRingSlots =
    1024;  // records the host may be behind; submit() waits before it wraps

MicroBatches::Setup setup_of(const StepOptions& options, size_t workspace_bytes, double* routing) {
  return {.shape = options.shape,
          .label_smoothing = options.label_smoothing,
          .workspace_bytes = workspace_bytes,
          .recompute = options.parallel.recompute,
          .recompute_units = options.recompute_units,
          .routing = routing};
}

void share_state(ParameterStore& store, const StepOptions& options, const Layout& layout) {
  check_sums(options.parallel, store.compute_type());
  if (options.parallel.offload) store.offload();
  if (options.optimizer.kind != OptimizerOptions::Kind::adamw)
    store.update_by(options.optimizer.kind);
  if (options.fp8) store.multiply_in_fp8();
  if (options.blocks) store.multiply_in_blocks(*options.blocks);
  if (layout.mesh().size() > 1)
    store.share(layout, {.zero = options.parallel.zero,
                         .bucket_elements = options.bucket_bytes /
                                            static_cast<int64_t>(size_of(store.wide_type())),
                         .reduce = options.parallel.reduce,
                         .coded_copies = options.parallel.coded_copies});
  store.hold_moments(options.optimizer.moments);
}
// Of what begins when everything else of the list has.
constexpr MicroBatches::Moment kEnd = std::numeric_limits<MicroBatches::Moment>::max();

}  // namespace

void allocate_for_steps(ParameterStore& store, const StepOptions& options, const Layout& layout) {
  share_state(store, options, layout);
  store.allocate(options.optimizer.purpose());
}

StepMemory plan_step(const model::ModelConfig& config, const ParameterStore& like,
                     const StepOptions& options, const Layout& layout,
                     const std::function<void(const MicroBatches&)>& look, const Pipeline* known) {
  const Device device = like.device();
  const DType compute = like.compute_type();
  ParameterStore store(device, compute);
  store.set_kernels(like.kernels());
  Pipeline pipeline =
      known ? *known
            : plan_pipeline(config, options.shape, options.accumulate, options.parallel, layout);
  pipeline.stages.rank = layout.coordinate(Layout::Axis::pp);
  if (pipeline.stages.chunks() > 0) {  // patterns that fit no parameter of the whole model
    ParameterStore whole(Device{}, compute);
    const model::Transformer all(config, whole);
    freeze_parameters(whole, options.freeze);
  }
  const model::Transformer model(config, store, layout, pipeline.stages);
  freeze_parameters(store, options.freeze);
  share_state(store, options, layout);
  // Planning runs nothing: any address will do for what is never counted.
  const MicroBatches micro_batches(model, store,
                                   setup_of(options, 0, reinterpret_cast<double*>(uintptr_t{4096})),
                                   pipeline.schedule, layout, nullptr);
  StepMemory m;
  m.recompute = micro_batches.recompute();
  const auto bytes = [&](std::initializer_list<StateArray> arrays) {
    size_t sum = 0;
    for (const StateArray a : arrays) sum += store.bytes(a, options.optimizer.purpose());
    return sum;
  };
  m.parameters =
      bytes({StateArray::master, StateArray::gradient, StateArray::compute, StateArray::residual});
  m.optimizer = bytes({StateArray::first_moment, StateArray::second_moment, StateArray::factors,
                       StateArray::fp8_sites, StateArray::average}) +
                StateStream::bytes(store, options.optimizer.purpose()) +
                OptimizerStep::scratch_bytes(store);
  for (const StateArray a : kStateArrays)
    m.host += store.host_bytes(a, options.optimizer.purpose());
  m.activations = micro_batches.arena_bytes();
  m.activations_unshared = micro_batches.unshared_bytes();
  m.batches =
      static_cast<size_t>(options.slots * batch_layout_of(options.shape, config, layout).words) *
          sizeof(int32_t) +
      micro_batches.batch_bytes();
  m.batches += RoutingTotals::bytes(config);
  m.workspace = kernels::matmul_workspace_bytes(device, compute) + CodedSums::bytes(store);
  if (look) look(micro_batches);
  return m;
}

TrainingStep::TrainingStep(const model::Transformer& model, ParameterStore& store,
                           const StepOptions& options, parallel::Communicator& ranks,
                           const Layout& layout)
    : model_(model),
      store_(store),
      options_(options),
      ranks_(ranks),
      layout_(layout),
      batch_layout_(batch_layout_of(options.shape, model.config(), layout)),
      compute_(store.device()),
      copy_(store.device()),
      state_(store.device(), sizeof(StepState)),
      routing_(model.config(), store.device(), compute_),
      pipeline_(plan_pipeline(model.config(), options.shape, options.accumulate, options.parallel,
                              layout)),
      optimizer_(store, options.optimizer, static_cast<float>(options.shape.target_rows), compute_,
                 ranks, layout),
      coded_(ranks, compute_, store.wide_type()),
      replay_(options.graph) {
  SAT_ASSERT(store.is_shared() == (ranks.size() > 1));
  SAT_ASSERT(options_.accumulate >= 1 && options_.slots >= options_.accumulate);
  allocate_device();
  SAT_ASSERT(model.stages().cuts == pipeline_.stages.cuts);
  micro_batches_.emplace(model_, store_, setup_of(options_, workspace_.bytes(), routing_.counts()),
                         pipeline_.schedule, layout_, state_.as<StepState>());
  plan_tables();
  plan_collectives();
  for (int32_t lane = 1; lane < micro_batches_->lanes(); ++lane)
    beside_.emplace_back(store.device());
  compute_.synchronize();
}

TrainingStep::~TrainingStep() {
  try {
    synchronize();
  } catch (const Error&) {  // the failure has been reported where it happened
  }
}

void TrainingStep::allocate_device() {
  const Device device = store_.device();
  const auto zeroed = [&](size_t bytes) {
    Buffer b(device, bytes);
    fill_bytes(compute_, b.data(), 0, bytes);
    return b;
  };
  for (size_t i = 0; i < kTimedSteps; ++i) {
    begin_.emplace_back(device, Event::Timing::on);
    end_.emplace_back(device, Event::Timing::on);
  }
  workspace_ = Buffer(device, kernels::matmul_workspace_bytes(device, store_.compute_type()));

  const size_t block = static_cast<size_t>(batch_layout_.words) * sizeof(int32_t);
  const auto slots = static_cast<size_t>(options_.slots);
  slots_ = zeroed(block * slots);
  host_slots_ = HostBuffer(device, block * slots);
  ring_ = HostBuffer(device, sizeof(StepRecord) * kRingSlots);
  std::vector<const int32_t*> pointers;
  for (size_t i = 0; i < slots; ++i) {
    // On the CPU the loader's memory is the device's memory.
    char* base = device.is_cuda() ? slots_.as<char>() : host_slots_.as<char>();
    pointers.push_back(reinterpret_cast<const int32_t*>(base + i * block));
    copied_.emplace_back(device);
    consumed_.emplace_back(device);
  }
  slot_pointers_ = Buffer(device, slots * sizeof(int32_t*));
  copy_to_device(compute_, slot_pointers_.data(), pointers.data(), slots * sizeof(int32_t*));
  StepState state;
  state.rng[0] = options_.seed;
  if (store_.compute_type() == DType::f16) state.loss_scale = 32768.0f;
  set_state(state);
}

// Which ranks hold the tables that several chunks use. All ranks make each group, in one order.
void TrainingStep::plan_tables() {
  const std::set<std::vector<int32_t>> sets(model_.shared_tables().begin(),
                                            model_.shared_tables().end());
  constexpr Layout::Axis kStages[] = {Layout::Axis::pp};
  const std::vector<int> stages = layout_.mesh().group(kStages, layout_.rank());
  for (const std::vector<int32_t>& holders : sets) {
    std::vector<int> members;
    for (const int32_t stage : holders) members.push_back(stages[static_cast<size_t>(stage)]);
    const bool mine = std::ranges::find(members, layout_.rank()) != members.end();
    parallel::Group group{.id = -1, .ranks = {layout_.rank()}};
    if (members.size() == stages.size())
      group = layout_.group({Layout::Axis::pp});
    else if (members.size() > 1)
      group = ranks_.make_group(mine ? members : std::vector{layout_.rank()});
    for (int32_t i = 0; mine && i < std::ssize(store_.specs()); ++i) {
      const ParameterSpec& p = store_.spec({i});
      if (p.holders == holders && !p.frozen) tables_.push_back({{i}, group});
    }
  }
}

void TrainingStep::plan_collectives() {
  if (ranks_.size() == 1) return;
  using Kind = parallel::CollectiveKind;
  std::vector<MicroBatches::FinishedGradient> finished = micro_batches_->finished_gradients();
  for (const Table& t : tables_) finished.push_back({t.id.index, kEnd});
  SAT_ASSERT(std::ssize(finished) ==
             std::ranges::count_if(store_.specs(), [](const auto& s) { return !s.frozen; }));
  const std::vector<MicroBatches::Moment> first_use = micro_batches_->first_uses();
  for (int32_t g = 0; g < std::ssize(store_.groups()); ++g) {
    const ParameterGroup& group = store_.groups()[static_cast<size_t>(g)];
    const ParameterGroup::Sharing& sharing = group.sharing();
    if (group.kind() == ParameterGroup::Kind::frozen || sharing.ranks.size() == 1) continue;
    if (sharing.zero >= 3 || (sharing.zero == 0 && store_.sharing().zero >= 2)) continue;
    const auto at = [&](StateArray a, int64_t element) -> void* {
      return group.array(a).as<char>() + static_cast<size_t>(element) * size_of(group.type_of(a));
    };
    for (const parallel::FlatRange& b : group.buckets()) {
      const auto inside = [&](const ParameterSpec& p) {
        return p.group == g && p.offset >= b.begin && p.offset < b.end;
      };
      MicroBatches::Moment ready = 0, needed = kEnd;
      for (const MicroBatches::FinishedGradient& f : finished)
        if (inside(store_.spec({f.parameter}))) ready = std::max(ready, f.moment);
      for (size_t p = 0; p < first_use.size(); ++p)
        if (inside(store_.specs()[p])) needed = std::min(needed, first_use[p]);
      parallel::Collective c{
          .group = sharing.ranks, .dtype = store_.wide_type(), .count = b.end - b.begin};
      void* const gradients = sharing.zero < 2 ? at(StateArray::gradient, b.begin) : nullptr;
      const auto number = static_cast<size_t>(&b - group.buckets().data());
      if (sharing.zero == 0) {
        if (sharing.coded)
          add_coded(ready, group, number);
        else
          reductions_.push_back({{ready, c, nullptr, gradients}});
        continue;
      }
      // In place: of the sum each rank keeps the slice that it updates; of the compute copy it has
      // written that slice, and the others come from the others.
      c.count /= sharing.ranks.size();
      const int64_t own = b.begin + sharing.position * c.count;
      c.kind = Kind::reduce_scatter;
      if (sharing.zero == 1) {
        reductions_.push_back({{ready, c, gradients, at(StateArray::gradient, own)}});
        c.kind = Kind::all_reduce;
        c.group = sharing.replicas;
        if (sharing.coded)
          add_coded(ready, group, number);
        else if (c.group.size() > 1)
          reductions_.push_back({{ready, c, nullptr, at(StateArray::gradient, own)}});
        c.group = sharing.ranks;
      }
      c.kind = Kind::all_gather;
      c.dtype = store_.compute_type();
      gathers_.push_back(
          {needed, c, at(StateArray::compute, own), at(StateArray::compute, b.begin)});
    }
  }
  plan_copies();
  coded_.allocate();
  // The buckets of all groups in the order in which they are ready or needed, which is the same on
  // all ranks of a stage.
  std::ranges::stable_sort(reductions_, {}, &Reduction::moment);
  std::ranges::stable_sort(gathers_, {}, &Bucket::moment);
  // What enqueue() starts, in order.
  std::vector<MicroBatches::Transfer> list;
  for (const Bucket& b : gathers_) list.push_back({-2, b.collective});
  const bool staged = layout_.extent(Layout::Axis::pp) > 1;
  list.push_back({staged ? kEnd : -1, loss_reduction()});
  for (const MicroBatches::Transfer& t : micro_batches_->transfers()) list.push_back(t);
  for (const Table& t : tables_) {
    const parallel::Collective c = table_sum(t);
    if (t.holders.size() > 1 && c.count > 0) list.push_back({kEnd, c});
  }
  for (const Reduction& r : reductions_) {
    if (r.coded < 0) {
      list.push_back({r.moment, r.collective});
      continue;
    }
    for (const parallel::Collective& c : coded_.collectives(static_cast<size_t>(r.coded)))
      list.push_back({r.moment, c});
  }
  for (const parallel::Collective& c : optimizer_.collectives()) list.push_back({kEnd, c});
  std::ranges::stable_sort(list, {}, &MicroBatches::Transfer::moment);
  std::vector<parallel::Collective> all;
  for (const MicroBatches::Transfer& t : list) all.push_back(t.collective);
  parallel::require_matching(ranks_, all);
}

// What levels 2 and 3 have reduced among the ranks that share one copy of the state is added up over
// the copies once a step: not before the first gradient is finished, and of a table that several
// stages hold when they have added up theirs, so that all of them do both in one order.
void TrainingStep::plan_copies() {
  const std::vector<MicroBatches::FinishedGradient> finished = micro_batches_->finished_gradients();
  for (const MicroBatches::ReducedUnit& u : micro_batches_->reduced_units()) {
    const ParameterGroup& group = store_.groups()[static_cast<size_t>(u.group)];
    const ParameterGroup::Sharing& sharing = group.sharing();
    if (sharing.replicas.size() == 1) continue;
    MicroBatches::Moment ready = u.moment;
    if (!finished.empty()) ready = std::max(ready, finished.front().moment);
    if (!group.holders().empty()) ready = kEnd;
    if (sharing.coded) {
      add_coded(ready, group, u.bucket);
      continue;
    }
    const OwnedRange& own = group.owned()[u.bucket];
    const DType type = store_.wide_type();
    char* const sums = group.array(StateArray::gradient).as<char>();
    reductions_.push_back(
        {{ready,
          {.group = sharing.replicas, .dtype = type, .count = own.end - own.begin},
          nullptr,
          sums + static_cast<size_t>(own.local) * size_of(type)}});
  }
}

void TrainingStep::add_coded(MicroBatches::Moment moment, const ParameterGroup& group,
                             size_t bucket) {
  reductions_.push_back({{moment, {}, nullptr, nullptr}, static_cast<int64_t>(coded_.sums())});
  coded_.add(coded_.sum_of(group, bucket));
}

// Of a gradient that ranks share, this rank sums the slice that it holds, and so do the holders that
// stand in their stages where it stands in its own.
TrainingStep::HeldTable TrainingStep::held_of(const Table& t) const {
  const ParameterSpec& p = store_.spec(t.id);
  const ParameterGroup& group = store_.group_of(p);
  char* const gradients = group.array(StateArray::gradient).as<char>();
  const size_t element = size_of(store_.wide_type());
  if (!group.holds_ranges(StateArray::gradient))
    return {gradients + static_cast<size_t>(p.offset) * element, 0, p.size()};
  const OwnedRange& own = group.owned()[group.bucket_of(p.offset)];
  const int64_t begin = std::max(own.begin, p.offset);
  const int64_t end = std::max(begin, std::min(own.end, p.offset + p.size()));
  return {gradients + static_cast<size_t>(own.local + begin - own.begin) * element,
          begin - p.offset, end - p.offset};
}

parallel::Collective TrainingStep::table_sum(const Table& t) const {
  const HeldTable held = held_of(t);
  return {.group = t.holders, .dtype = store_.wide_type(), .count = held.end - held.begin};
}

// The gradients of tables over their holders; then what the lookup clears on one rank, which others
// may have added to since.
void TrainingStep::sum_tables(const Context& ctx) const {
  for (const Table& t : tables_) {
    const ParameterSpec& p = store_.spec(t.id);
    const HeldTable held = held_of(t);
    if (held.begin == held.end) continue;
    const size_t element = size_of(store_.wide_type());
    if (t.holders.size() > 1)
      ranks_.wait(ranks_.start(table_sum(t), nullptr, held.gradient, ctx), ctx);
    const std::vector<parallel::ShardRun> all{{0, p.size()}};
    int64_t local = 0;
    for (const parallel::ShardRun& run : p.whole.rows > 0 ? p.whole.runs : all) {
      const int64_t row = p.zero_row * p.cols - run.global_offset;
      if (p.zero_row >= 0 && row >= 0 && row < run.length) {
        const int64_t begin = std::max(local + row, held.begin);
        const int64_t end = std::min(local + row + p.cols, held.end);
        if (begin < end)
          fill_bytes(compute_, held.gradient + static_cast<size_t>(begin - held.begin) * element, 0,
                     static_cast<size_t>(end - begin) * element);
      }
      local += run.length;
    }
  }
}

int32_t* TrainingStep::host_slot(int64_t i) noexcept {
  return host_slots_.as<int32_t>() + i * batch_layout_.words;
}

void TrainingStep::wait_slot(int64_t i) { copied_[static_cast<size_t>(i)].synchronize(); }

// Sums of the loss and the number of tokens.
parallel::Collective TrainingStep::loss_reduction() const {
  return {.group = ranks_.world(), .dtype = DType::f64, .count = 3};
}

void TrainingStep::enqueue() {
  const Context ctx{store_.device(), compute_.native(), workspace_.data(), workspace_.bytes()};
  if (store_.sharing().zero >= 2) {  // reductions add to what ranks hold
    for (const ParameterGroup& group : store_.groups()) {
      const Block& held = group.array(StateArray::gradient);
      if (held.data()) fill_bytes(compute_, held.data(), 0, held.bytes());
    }
  }
  std::vector<parallel::Ticket> gathered;
  for (const Bucket& b : gathers_)
    gathered.push_back(ranks_.start(b.collective, b.input, b.output, ctx));
  size_t arrived = 0;
  // The next operation finds its parameters whole.
  const auto gather = [&](MicroBatches::Moment next) {
    const size_t before = arrived;
    while (arrived < gathers_.size() && gathers_[arrived].moment <= next) ++arrived;
    if (arrived > before) ranks_.wait(gathered[arrived - 1], ctx);
  };
  std::vector<Lane> lanes;
  if (!beside_.empty()) lanes.push_back({&compute_, ctx});
  for (const Stream& s : beside_) lanes.push_back({&s, {store_.device(), s.native()}});
  parallel::Ticket reduced;  // the last, which ends after those before it
  const auto sum_loss = [&] {
    reduced = ranks_.start(loss_reduction(), nullptr, state_.as<StepState>()->totals, ctx);
  };
  // On one stage the sums of the loss are complete once the forward pass is; with several their sum
  // waits for the transfers, which go on elsewhere.
  const bool staged = layout_.extent(Layout::Axis::pp) > 1;
  size_t next = 0;
  // What a list reduces by itself is there on its lane 1; behind the lists all lanes are joined.
  const bool beside = store_.sharing().zero >= 2 && lanes.size() > 1;
  const auto reduce = [&](MicroBatches::Moment moment) {
    for (; next < reductions_.size() && reductions_[next].moment <= moment; ++next) {
      if (next == 0 && !staged) sum_loss();
      const Reduction& r = reductions_[next];
      const bool on_lane = beside && moment < kEnd;
      reduced = r.coded < 0
                    ? ranks_.start(r.collective, r.input, r.output, on_lane ? lanes[1].ctx : ctx)
                    : coded_.enqueue(static_cast<size_t>(r.coded),
                                     on_lane ? *lanes[1].stream : compute_, reduced);
    }
  };
  MicroBatches::Hooks hooks;
  hooks.scales_known = replay_.ran();  // the first step is not of the graph
  if (!gathers_.empty()) hooks.before = gather;
  if (!reductions_.empty()) hooks.after = reduce;
  micro_batches_->enqueue(ctx, compute_, lanes, ranks_,
                          {.slots = slot_pointers_.as<const int32_t*>(),
                           .slot_count = options_.slots,
                           .words = batch_layout_.words,
                           .rank = data_rank(),
                           .ranks = data_ranks(),
                           .state = state_.as<StepState>()},
                          hooks);
  if (ranks_.size() > 1 && (staged || reductions_.empty())) sum_loss();
  sum_tables(ctx);
  reduce(kEnd);
  ranks_.wait(reduced, ctx);
  if (coded_.sums() > 0) coded_.join();
  optimizer_.enqueue(ctx, compute_, state_.as<StepState>(), ring_.as<StepRecord>(), kRingSlots);
}

void TrainingStep::submit() {
  if (submitted_ - polled_ >= kRingSlots)
    synchronize();  // the caller never polled: do not overwrite
  const bool gpu = store_.device().is_cuda();
  const size_t block = static_cast<size_t>(batch_layout_.words) * sizeof(int32_t);
  std::vector<size_t> used;
  for (int64_t a = 0; a < options_.accumulate; ++a) {
    const auto slot = static_cast<size_t>(micro_++ % options_.slots);
    used.push_back(slot);
    cut_in_chunks(batch_layout_, layout_, host_slot(static_cast<int64_t>(slot)));
    if (!gpu) continue;
    consumed_[slot].wait_on(copy_);
    copy_to_device(copy_, slots_.as<char>() + slot * block, host_slot(static_cast<int64_t>(slot)),
                   block);
    copied_[slot].record(copy_);
    copied_[slot].wait_on(compute_);
  }
  const size_t timed = static_cast<size_t>(submitted_) % kTimedSteps;
  begin_[timed].record(compute_);
  replay_.enqueue(compute_, [this] { enqueue(); });
  end_[timed].record(compute_);
  for (size_t slot : used) consumed_[slot].record(compute_);
  ++submitted_;
}

bool TrainingStep::poll(StepRecord* record) {
  if (polled_ >= submitted_) return false;
  const StepRecord& r = ring_.as<StepRecord>()[polled_ % kRingSlots];
  // Written by the device, `sequence` last: seen whole or not at all.
  if (std::atomic_ref(const_cast<uint64_t&>(r.sequence)).load(std::memory_order_acquire) !=
      static_cast<uint64_t>(polled_ + 1)) {
    return false;
  }
  *record = r;
  // This record was written after the step before had ended altogether.
  if (polled_ > first_polled_) {
    const size_t before = static_cast<size_t>(polled_ - 1) % kTimedSteps;
    device_ms_ += Event::elapsed_ms(begin_[before], end_[before]);
  }
  ++polled_;
  return true;
}

bool TrainingStep::device_idle() const {
  return submitted_ == first_polled_ ||
         end_[static_cast<size_t>(submitted_ - 1) % kTimedSteps].done();
}

void TrainingStep::synchronize() {
  copy_.synchronize();
  compute_.synchronize();
}

StepState TrainingStep::state() {
  StepState s;
  copy_to_host(compute_, &s, state_.data(), sizeof s);
  compute_.synchronize();
  const auto rank = static_cast<uint64_t>(data_rank()), size = static_cast<uint64_t>(data_ranks());
  s.rng[1] = micro_batches_taken(s.rng[1], rank, size) * size;
  return s;
}

void TrainingStep::set_state(const StepState& host) {
  StepState state = host;
  const auto rank = static_cast<uint64_t>(data_rank()), size = static_cast<uint64_t>(data_ranks());
  const uint64_t taken = host.rng[1] / size;
  state.rng[1] = micro_batch_counter(taken, rank, size);
  copy_to_device(compute_, state_.data(), &state, sizeof state);
  compute_.synchronize();
  submitted_ = polled_ = first_polled_ = state.step;
  micro_ = static_cast<int64_t>(taken);
}

double TrainingStep::last_step_ms() {
  if (submitted_ == first_polled_) return 0;
  const size_t last = static_cast<size_t>(submitted_ - 1) % kTimedSteps;
  end_[last].synchronize();
  return Event::elapsed_ms(begin_[last], end_[last]);
}

}  // namespace saturate::train
