// SPDX-License-Identifier: Apache-2.0
#include "train/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/gemm/matmul.h"
#include "parallel/gradient_buckets.h"
#include "train/frozen.h"
#include "train/loss_tape.h"

namespace saturate::train {
namespace {

// Steps whose times are kept: more than the host is ever ahead of the device by.
constexpr size_t kTimedSteps = 64;
constexpr int64_t kRingSlots =
    1024;  // records the host may be behind; submit() waits before it wraps

void record(Tape& tape, const model::Transformer& model, const data::BatchLayout& layout,
            int32_t* batch, StepState* state, float label_smoothing) {
  record_loss(tape, model, layout, batch,
              {.label_smoothing = label_smoothing,
               .grad_scale = 1.0f / static_cast<float>(layout.shape.target_rows),
               .device_scale = state ? &state->loss_scale : nullptr,
               .totals = state ? state->totals : nullptr});
  tape.backward();
}

}  // namespace

StepMemory plan_step(const model::ModelConfig& config, DType compute, Device device,
                     const StepOptions& options) {
  ParameterStore store(device, compute);
  const model::Transformer model(config, store);
  freeze_parameters(store, options.freeze);
  const data::BatchLayout layout(options.shape);
  Tape tape(store, TapeMode::training, nullptr);
  // Planning runs nothing: any address will do for a batch that is never read.
  auto* nowhere = reinterpret_cast<int32_t*>(uintptr_t{4096});
  record(tape, model, layout, nowhere, nullptr, options.label_smoothing);
  StepMemory m;
  const auto n = static_cast<size_t>(store.padded_count());
  m.parameters =
      n * (2 * size_of(store.wide_type()) + (compute == store.wide_type() ? 0 : size_of(compute)));
  m.optimizer = n * sizeof(float) * (options.ema_decay > 0 ? 3 : 2);
  m.activations = tape.plan();
  m.activations_unshared = tape.unshared_bytes();
  m.batches = static_cast<size_t>((options.slots + 1) * layout.words) * sizeof(int32_t);
  m.workspace = kernels::matmul_workspace_bytes(device, compute);
  return m;
}

TrainingStep::TrainingStep(const model::Transformer& model, ParameterStore& store,
                           const StepOptions& options, parallel::Communicator& ranks)
    : model_(model),
      store_(store),
      options_(options),
      ranks_(ranks),
      layout_(options.shape),
      compute_(store.device()),
      copy_(store.device()),
      state_(store.device(), sizeof(StepState)),
      tape_(store, TapeMode::training, state_.as<StepState>()->rng),
      replay_(options.graph) {
  SAT_ASSERT(options_.accumulate >= 1 && options_.slots >= options_.accumulate);
  allocate_device();
  record(tape_, model_, layout_, batch_.as<int32_t>(), state_.as<StepState>(),
         options_.label_smoothing);
  plan_buckets();
  arena_bytes_ = tape_.plan();
  arena_ = Buffer(store.device(), arena_bytes_);
  fill_bytes(compute_, arena_.data(), 0, arena_bytes_);
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
  const auto n = static_cast<size_t>(store_.padded_count());
  const auto zeroed = [&](size_t bytes) {
    Buffer b(device, bytes);
    fill_bytes(compute_, b.data(), 0, bytes);
    return b;
  };
  m_ = zeroed(n * sizeof(float));
  v_ = zeroed(n * sizeof(float));
  if (options_.ema_decay > 0) {
    ema_ = Buffer(device, n * sizeof(float));
    reset_average();
  }
  std::vector<kernels::DecayRule> rules(n / kernels::kParameterAlign);
  for (const ParameterSpec& p : store_.specs()) {
    const int64_t first = p.offset / kernels::kParameterAlign;
    const int64_t last = (p.offset + p.size() - 1) / kernels::kParameterAlign + 1;
    std::fill(rules.begin() + first, rules.begin() + last,
              p.decay ? kernels::DecayRule::decayed : kernels::DecayRule::plain);
    if (p.frozen) continue;
    const int64_t begin = first * kernels::kParameterAlign, end = last * kernels::kParameterAlign;
    if (!trained_.empty() && trained_.back().end == begin) {
      trained_.back().end = end;
    } else {
      trained_.push_back({begin, end, begin});
    }
  }
  rules_ = Buffer(device, rules.size());
  copy_to_device(compute_, rules_.data(), rules.data(), rules.size());
  norm_partial_ = Buffer(
      device, static_cast<size_t>(kernels::norm_blocks(store_.padded_count())) * sizeof(double));
  for (size_t i = 0; i < kTimedSteps; ++i) {
    begin_.emplace_back(device, Event::Timing::on);
    end_.emplace_back(device, Event::Timing::on);
  }
  workspace_ = Buffer(device, kernels::matmul_workspace_bytes(device, store_.compute_type()));

  const size_t block = static_cast<size_t>(layout_.words) * sizeof(int32_t);
  const auto slots = static_cast<size_t>(options_.slots);
  batch_ = zeroed(block);
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

void TrainingStep::plan_buckets() {
  if (ranks_.size() == 1) return;
  std::vector<parallel::FlatRange> order;
  std::vector<int32_t> operations;
  const auto& specs = store_.specs();
  for (const Tape::FinishedGradient& f : tape_.finished_gradients()) {
    const auto p = static_cast<size_t>(f.parameter);
    const int64_t end = p + 1 < specs.size() ? specs[p + 1].offset : store_.padded_count();
    order.push_back({specs[p].offset, end});
    operations.push_back(f.operation);
  }
  SAT_ASSERT(std::ssize(order) ==
             std::count_if(specs.begin(), specs.end(), [](const auto& s) { return !s.frozen; }));
  for (const parallel::GradientBucket& b : parallel::gradient_buckets(
           order, options_.bucket_bytes / static_cast<int64_t>(sizeof(float)))) {
    buckets_.push_back({operations[static_cast<size_t>(b.ready_after)],
                        {.group = ranks_.world(), .count = b.elements.end - b.elements.begin},
                        b.elements.begin});
  }
  std::vector<parallel::Collective> reductions = {loss_reduction()};
  for (const Bucket& b : buckets_) reductions.push_back(b.sum);
  parallel::require_matching(ranks_, reductions);
}

int32_t* TrainingStep::host_slot(int64_t i) noexcept {
  return host_slots_.as<int32_t>() + i * layout_.words;
}

void TrainingStep::wait_slot(int64_t i) { copied_[static_cast<size_t>(i)].synchronize(); }

// Sums of the loss and the number of tokens.
parallel::Collective TrainingStep::loss_reduction() const {
  return {.group = ranks_.world(), .dtype = DType::f64, .count = 3};
}

void TrainingStep::enqueue() {
  const Context ctx{store_.device(), compute_.native(), workspace_.data(), workspace_.bytes()};
  parallel::Ticket reduced;  // the last, which ends after those before it
  for (int64_t a = 0; a < options_.accumulate; ++a) {
    kernels::batch_intake(ctx, {.slots = slot_pointers_.as<const int32_t*>(),
                                .slot_count = options_.slots,
                                .dst = batch_.as<int32_t>(),
                                .words = layout_.words,
                                .rank = ranks_.rank(),
                                .ranks = ranks_.size(),
                                .state = state_.as<StepState>()});
    size_t next = 0;
    std::function<void(int32_t)> reduce;
    if (!buckets_.empty() && a + 1 == options_.accumulate) {
      reduce = [&](int32_t operation) {
        // The sums of the loss are complete once the forward pass is.
        if (next == 0 && buckets_.front().after <= operation) {
          reduced = ranks_.start(loss_reduction(), nullptr, state_.as<StepState>()->totals, ctx);
        }
        for (; next < buckets_.size() && buckets_[next].after <= operation; ++next) {
          reduced = ranks_.start(buckets_[next].sum, nullptr,
                                 store_.gradients().as<float>() + buckets_[next].offset, ctx);
        }
      };
    }
    tape_.run(ctx, arena_.data(), a > 0, reduce);
  }
  ranks_.wait(reduced, ctx);
  optimize();
}

void TrainingStep::optimize() {
  const Context ctx{store_.device(), compute_.native(), workspace_.data(), workspace_.bytes()};
  auto* state = state_.as<StepState>();
  const auto budget = static_cast<float>(options_.shape.target_rows);
  const std::vector<kernels::OwnedRange> whole{{0, store_.padded_count(), 0}};
  const kernels::GradientNormArgs norm{.grad = store_.gradients().data(),
                                       .count = store_.padded_count(),
                                       .ranges = whole,
                                       .partial = norm_partial_.as<double>(),
                                       .state = state};
  kernels::gradient_norm_blocks(ctx, norm);
  kernels::gradient_norm_join(ctx, norm);
  kernels::adamw(ctx, {.master = store_.masters().data(),
                       .m = m_.data(),
                       .v = v_.data(),
                       .grad = store_.gradients().data(),
                       .ema = ema_.data(),
                       .compute = store_.computes().data(),
                       .compute_type = store_.compute_type(),
                       .rules = rules_.as<kernels::DecayRule>(),
                       .ranges = trained_,
                       .beta1 = options_.beta1,
                       .beta2 = options_.beta2,
                       .eps = options_.eps,
                       .weight_decay = options_.weight_decay,
                       .clip_norm = options_.clip_norm,
                       .ema_decay = options_.ema_decay,
                       .token_budget = budget,
                       .schedule = options_.schedule,
                       .state = state});
  kernels::finish_step(ctx, {.state = state,
                             .ring = ring_.as<StepRecord>(),
                             .ring_slots = kRingSlots,
                             .schedule = options_.schedule,
                             .token_budget = budget,
                             .dynamic_loss_scale = store_.compute_type() == DType::f16});
}

void TrainingStep::submit() {
  if (submitted_ - polled_ >= kRingSlots)
    synchronize();  // the caller never polled: do not overwrite
  const bool gpu = store_.device().is_cuda();
  const size_t block = static_cast<size_t>(layout_.words) * sizeof(int32_t);
  std::vector<size_t> used;
  for (int64_t a = 0; a < options_.accumulate; ++a) {
    const auto slot = static_cast<size_t>(micro_++ % options_.slots);
    used.push_back(slot);
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
  const auto rank = static_cast<uint64_t>(ranks_.rank()),
             size = static_cast<uint64_t>(ranks_.size());
  s.rng[1] = micro_batches_taken(s.rng[1], rank, size) * size;
  return s;
}

void TrainingStep::set_state(const StepState& host) {
  StepState state = host;
  const auto rank = static_cast<uint64_t>(ranks_.rank()),
             size = static_cast<uint64_t>(ranks_.size());
  const uint64_t taken = host.rng[1] / size;
  state.rng[1] = micro_batch_counter(taken, rank, size);
  copy_to_device(compute_, state_.data(), &state, sizeof state);
  compute_.synchronize();
  submitted_ = polled_ = first_polled_ = state.step;
  micro_ = static_cast<int64_t>(taken);
}

void TrainingStep::reset_average() {
  if (ema_.data()) copy_on_device(compute_, ema_.data(), store_.masters().data(), ema_.bytes());
}

double TrainingStep::last_step_ms() {
  if (submitted_ == first_polled_) return 0;
  const size_t last = static_cast<size_t>(submitted_ - 1) % kTimedSteps;
  end_[last].synchronize();
  return Event::elapsed_ms(begin_[last], end_[last]);
}

}  // namespace saturate::train
