// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer_step.h"

#include <algorithm>

#include "kernels/optimizer/muon.h"

namespace saturate::train {
namespace {

using Axis = Layout::Axis;

// The ranks of a pipeline stage hold all elements of the stage's parameters between them.
const parallel::Group& stage_of(const Layout& layout) {
  return layout.group({Axis::tp, Axis::cp, Axis::dp});
}

// Part `rank` of `ranks` equal ones of each range, in whole blocks of the norm.
std::vector<OwnedRange> part_of(std::span<const OwnedRange> ranges, int ranks, int rank) {
  std::vector<OwnedRange> parts;
  for (const OwnedRange& r : ranges) {
    const parallel::FlatRange all{r.begin, r.end};
    for (const OwnedRange& p : owned_ranges({&all, 1}, ranks, rank))
      parts.push_back({p.begin, p.end, r.local + p.begin - r.begin});
  }
  return parts;
}

// Matrices of one shape that lie in a parameter one behind the other.
struct Matrices {
  int64_t offset = 0;  // of the group
  kernels::MuonArgs shape;
};

std::vector<Matrices> matrices_of(const ParameterStore& store, const ParameterSpec& p) {
  const bool rounds = store.compute_type() != store.wide_type();
  std::vector<int64_t> blocks = p.blocks;
  if (blocks.empty()) blocks.push_back(p.rows);
  std::vector<Matrices> out;
  int64_t row = 0;
  for (const int64_t rows : blocks) {
    if (!out.empty() && out.back().shape.rows == rows) {
      ++out.back().shape.batch;
    } else {
      kernels::MuonArgs shape{.rows = rows, .cols = p.cols, .dtype = store.wide_type()};
      if (rounds) shape.compute_type = store.compute_type();
      out.push_back({p.offset + row * p.cols, shape});
    }
    row += rows;
  }
  SAT_ASSERT(row == p.rows);
  return out;
}

// Random numbers belong to a parameter's elements, so that they do not depend on how ranks share the
// arrays. Padding at the end of a unit is of no parameter and stays zero.
Buffer names_of_pieces(const ParameterStore& store, size_t group, const Stream& stream) {
  using kernels::kParameterAlign, kernels::PieceName;
  const int64_t count = store.groups()[group].count();
  std::vector<PieceName> names(static_cast<size_t>(count / kParameterAlign));
  for (const ParameterSpec& p : store.specs()) {
    if (p.group != static_cast<int32_t>(group)) continue;
    for (int64_t e = 0; e < p.size(); e += kParameterAlign)
      names[static_cast<size_t>((p.offset + e) / kParameterAlign)] = {
          static_cast<uint32_t>(p.number), static_cast<uint32_t>(e / kParameterAlign)};
  }
  Buffer out(store.device(), names.size() * sizeof(PieceName));
  copy_to_device(stream, out.data(), names.data(), out.bytes());
  stream.synchronize();  // before `names` goes
  return out;
}

}  // namespace

OptimizerStep::OptimizerStep(const ParameterStore& store, const OptimizerOptions& options,
                             float token_budget, const Stream& stream,
                             parallel::Communicator& ranks, const Layout& layout)
    : store_(store),
      options_(options),
      token_budget_(token_budget),
      ranks_(ranks),
      layout_(layout),
      every_rank_has_all_(true),
      fp8_(store, ranks, layout) {
  for (size_t g = 0; g < store.groups().size(); ++g) {
    const ParameterGroup& group = store.groups()[g];
    if (group.kind() == ParameterGroup::Kind::frozen || group.count() == 0) continue;
    const parallel::Group& same = layout.group(group.axes());
    every_rank_has_all_ =
        every_rank_has_all_ && group.owns_all() && same.size() == stage_of(layout).size();
    // Ranks that have all of it, or the same share of it, count equal parts.
    const parallel::Group& alike = group.owns_all() ? same : group.sharing().replicas;
    std::vector<OwnedRange> counted(group.owned().begin(), group.owned().end());
    if (alike.size() > 1) counted = part_of(counted, alike.size(), alike.position(layout.rank()));
    const auto pieces = static_cast<size_t>(group.count() / kernels::kParameterAlign);
    std::vector<kernels::DecayRule> decay(pieces, kernels::DecayRule::plain);
    for (const ParameterSpec& p : store.specs()) {
      if (p.group != static_cast<int32_t>(g) || !p.decay) continue;
      const int64_t first = p.offset / kernels::kParameterAlign;
      const int64_t last = (p.offset + p.size() - 1) / kernels::kParameterAlign;
      std::fill(decay.begin() + first, decay.begin() + last + 1, kernels::DecayRule::decayed);
    }
    Buffer rules(store.device(), pieces);
    copy_to_device(stream, rules.data(), decay.data(), decay.size());
    Buffer named;
    if (options.moments != kernels::MomentType::wide) named = names_of_pieces(store, g, stream);
    stream.synchronize();
    parts_.push_back({&group, std::move(rules), std::move(named), blocks_, std::move(counted)});
    blocks_ += kernels::norm_blocks(group.count());
    if (group.update() == ParameterGroup::Update::adafactor)
      parts_.back().adafactor =
          std::make_unique<AdafactorStep>(store, static_cast<int32_t>(g), stream, ranks);
  }
  for (Part& part : parts_) {
    if (every_rank_has_all_)
      part.counted.assign(part.group->owned().begin(), part.group->owned().end());
    // Stages that hold the same table have the same gradient of it: the first counts it.
    const std::vector<int32_t>& holders = part.group->holders();
    if (!holders.empty() && holders.front() != layout.coordinate(Axis::pp)) part.counted.clear();
  }
  // At least one: a stage of a pipeline may have nothing that trains.
  norm_partial_ =
      Buffer(store.device(), static_cast<size_t>(std::max<int64_t>(blocks_, 1)) * sizeof(double));
  scratch_ = Buffer(store.device(), scratch_bytes(store));
  if (store.is_offloaded()) streamed_ = std::make_unique<StateStream>(store);
}

std::vector<parallel::Collective> OptimizerStep::collectives() const {
  std::vector<parallel::Collective> list;
  if (!every_rank_has_all_)
    list.push_back({.group = stage_of(layout_), .dtype = DType::f64, .count = blocks_});
  if (const parallel::Group& stages = layout_.group({Axis::pp}); stages.size() > 1)
    list.push_back({.group = stages, .dtype = DType::f64, .count = 1});
  for (const Part& part : parts_) {
    if (part.adafactor == nullptr) continue;
    const std::vector<parallel::Collective> more = part.adafactor->collectives();
    list.insert(list.end(), more.begin(), more.end());
  }
  const std::vector<parallel::Collective> of_scales = fp8_.collectives();
  list.insert(list.end(), of_scales.begin(), of_scales.end());
  return list;
}

// The blocks of all groups are added up over the ranks of the stage, and then in one order; so all
// ranks have the same sum to the last bit. Stages hold other parameters: theirs are one number more.
void OptimizerStep::enqueue_norm(const Context& ctx, StepState* state) const {
  const auto norm_of = [&](int64_t first_block, int64_t count) {
    return kernels::GradientNormArgs{.dtype = store_.wide_type(),
                                     .count = count,
                                     .ranges = {},
                                     .partial = norm_partial_.as<double>() + first_block,
                                     .state = state};
  };
  for (const Part& part : parts_) {
    kernels::GradientNormArgs norm = norm_of(part.first_block, part.group->count());
    const Block& gradient = part.group->array(StateArray::gradient);
    norm.grad = gradient.data();
    norm.ranges = part.counted;
    if (!part.group->holds_ranges(StateArray::gradient)) {
      kernels::gradient_norm_blocks(ctx, norm);
      continue;
    }
    norm.ranges = {};
    kernels::gradient_norm_blocks(ctx, norm);  // zeros for the blocks of others
    for (const OwnedRange& r : part.counted) {
      const OwnedRange all{0, r.end - r.begin, 0};
      kernels::GradientNormArgs own =
          norm_of(part.first_block + r.begin / kernels::kNormBlock, all.end);
      own.grad = gradient.as<char>() + static_cast<size_t>(r.local) * size_of(store_.wide_type());
      own.ranges = {&all, 1};
      kernels::gradient_norm_blocks(ctx, own);
    }
  }
  const std::vector<parallel::Collective> sums = collectives();
  const auto sum = [&](const parallel::Collective& c, void* values) {
    ranks_.wait(ranks_.start(c, nullptr, values, ctx), ctx);
  };
  if (!every_rank_has_all_) sum(sums.front(), norm_partial_.data());
  kernels::gradient_norm_join(ctx, norm_of(0, blocks_ * kernels::kNormBlock));
  if (layout_.extent(Axis::pp) > 1) sum(sums[every_rank_has_all_ ? 0 : 1], &state->grad_square_sum);
}

void OptimizerStep::enqueue_adamw(const Context& ctx, const Part& part,
                                  std::span<const OwnedRange> ranges, const StateMemory& memory,
                                  const StepState* state) const {
  const ParameterGroup& group = *part.group;
  const bool rounds = store_.compute_type() != store_.wide_type();
  const auto plus = [](void* array, int64_t elements, DType type) -> void* {
    return array == nullptr
               ? nullptr
               : static_cast<char*>(array) + static_cast<size_t>(elements) * size_of(type);
  };
  // Elements of whole arrays lie at `begin`, of the own ranges at `local`.
  const auto update = [&](std::span<const OwnedRange> some, int64_t begin, int64_t local) {
    const auto state_at = [&](void* array) {
      return plus(array, local - memory.first, store_.wide_type());
    };
    // Moments that are rounded are not streamed: memory.first is 0 then.
    const auto moment_at = [&](StateArray a, void* array) -> void* {
      if (group.moments_of(a) == kernels::MomentType::wide) return state_at(array);
      return static_cast<char*>(array) + static_cast<size_t>(local) * group.element_bytes(a);
    };
    const auto scales_at = [&](StateArray a) {
      float* const scales = group.scales(a);
      return scales == nullptr ? nullptr : scales + local / kernels::kParameterAlign;
    };
    const int64_t piece = begin / kernels::kParameterAlign;
    const auto array_at = [&](StateArray a) {
      return plus(group.array(a).data(), group.holds_ranges(a) ? local : begin, group.type_of(a));
    };
    kernels::adamw(ctx, {.master = state_at(memory.master),
                         .m = moment_at(StateArray::first_moment, memory.m),
                         .v = moment_at(StateArray::second_moment, memory.v),
                         .grad = array_at(StateArray::gradient),
                         .ema = state_at(memory.average),
                         .compute = rounds ? array_at(StateArray::compute) : nullptr,
                         .dtype = store_.wide_type(),
                         .compute_type = store_.compute_type(),
                         .moments = group.moments_of(StateArray::first_moment),
                         .m_scales = scales_at(StateArray::first_moment),
                         .v_scales = scales_at(StateArray::second_moment),
                         .pieces = part.pieces.data() == nullptr
                                       ? nullptr
                                       : part.pieces.as<kernels::PieceName>() + piece,
                         .rules = part.rules.as<kernels::DecayRule>() + piece,
                         .ranges = some,
                         .beta1 = options_.beta1,
                         .beta2 = options_.beta2,
                         .eps = options_.eps,
                         .weight_decay = options_.weight_decay,
                         .clip_norm = options_.clip_norm,
                         .ema_decay = options_.ema_decay,
                         .token_budget = token_budget_,
                         .schedule = options_.schedule,
                         .state = state});
  };
  if (group.holds_ranges(StateArray::gradient)) {
    for (const OwnedRange& r : ranges) {
      const OwnedRange all{0, r.end - r.begin, 0};
      update({&all, 1}, r.begin, r.local);
    }
  } else {
    std::vector<OwnedRange> here(ranges.begin(), ranges.end());
    for (OwnedRange& r : here) r.local -= memory.first;
    update(here, 0, memory.first);
  }
  if (!rounds) group.refresh_compute(ctx, ranges, memory.master, memory.first);
}

size_t OptimizerStep::scratch_bytes(const ParameterStore& store) {
  size_t most = 0, tables = 0;
  for (size_t g = 0; g < store.groups().size(); ++g) {
    if (store.groups()[g].update() == ParameterGroup::Update::adafactor)
      tables += AdafactorStep::scratch_bytes(store, static_cast<int32_t>(g));
  }
  for (const ParameterSpec& p : store.specs()) {
    if (store.group_of(p).update() != ParameterGroup::Update::muon) continue;
    for (const Matrices& m : matrices_of(store, p)) {
      kernels::MuonArgs shape = m.shape;
      if (store.compute_type() != store.wide_type()) shape.compute = &shape;  // there is a copy
      most = std::max(most, kernels::muon_scratch_bytes(shape));
    }
  }
  return most + tables;
}

void OptimizerStep::enqueue_muon(const Context& ctx, const Part& part,
                                 const StepState* state) const {
  const ParameterGroup& group = *part.group;
  SAT_ASSERT(group.owns_all());
  const bool rounds = store_.compute_type() != store_.wide_type();
  for (const ParameterSpec& p : store_.specs()) {
    if (&store_.group_of(p) != &group) continue;
    for (const Matrices& m : matrices_of(store_, p)) {
      kernels::MuonArgs args = m.shape;
      args.master = group.at(StateArray::master, m.offset);
      args.m = group.at(StateArray::first_moment, m.offset);
      args.grad = group.at(StateArray::gradient, m.offset);
      args.ema = group.at(StateArray::average, m.offset);
      args.compute = rounds ? group.at(StateArray::compute, m.offset) : nullptr;
      args.scratch = scratch_.data();
      args.momentum = options_.momentum;
      args.weight_decay = p.decay ? options_.weight_decay : 0.0f;
      args.clip_norm = options_.clip_norm;
      args.ema_decay = options_.ema_decay;
      args.token_budget = token_budget_;
      args.schedule = options_.schedule;
      args.state = state;
      kernels::muon(ctx, args);
    }
  }
}

void OptimizerStep::enqueue(const Context& ctx, const Stream& stream, StepState* state,
                            StepRecord* ring, int64_t ring_slots) const {
  if (streamed_) streamed_->begin(stream);
  enqueue_norm(ctx, state);
  for (const Part& part : parts_) {
    const ParameterGroup& g = *part.group;
    if (g.in_host(StateArray::master)) continue;
    if (g.update() == ParameterGroup::Update::muon) {
      enqueue_muon(ctx, part, state);
      continue;
    }
    if (part.adafactor != nullptr) {
      part.adafactor->enqueue(ctx, options_, token_budget_, state);
      continue;
    }
    enqueue_adamw(ctx, part, g.owned(),
                  {.first = 0,
                   .master = g.array(StateArray::master).data(),
                   .m = g.array(StateArray::first_moment).data(),
                   .v = g.array(StateArray::second_moment).data(),
                   .average = g.array(StateArray::average).data()},
                  state);
  }
  if (streamed_) {
    streamed_->run(stream, [&](const StateStream::Chunk& chunk, const StateMemory& memory) {
      enqueue_adamw(ctx, *std::ranges::find(parts_, chunk.group, &Part::group), chunk.ranges,
                    memory, state);
    });
  }
  fp8_.enqueue(ctx, token_budget_, state);
  kernels::finish_step(ctx, {.state = state,
                             .ring = ring,
                             .ring_slots = ring_slots,
                             .schedule = options_.schedule,
                             .token_budget = token_budget_,
                             .dynamic_loss_scale = store_.compute_type() == DType::f16});
}

}  // namespace saturate::train
