// SPDX-License-Identifier: Apache-2.0
#include "train/adafactor_step.h"

#include <algorithm>

#include "ops/factors.h"
#include "train/optimizer_step.h"

namespace saturate::train {
namespace {

using kernels::AdafactorPiece, kernels::AdafactorTensor, kernels::DecayRule;

struct Plan {
  std::vector<AdafactorTensor> tensors;
  std::vector<AdafactorPiece> pieces;
  int64_t partials = 0, factors = 0, widest = 0;
  size_t scratch() const {
    return kernels::adafactor_scratch_bytes(std::ssize(tensors), std::ssize(pieces), partials);
  }
};

// No parameter lies in two buckets, so a rank owns one range of it at most.
OwnedRange owned_part(const ParameterGroup& group, int64_t begin, int64_t end) {
  OwnedRange part{begin, begin, 0};
  for (const OwnedRange& r : group.owned()) {
    const int64_t first = std::max(begin, r.begin), last = std::min(end, r.end);
    if (first >= last) continue;
    SAT_ASSERT(part.begin == part.end);
    part = {first, last, r.local + first - r.begin};
  }
  return part;
}

Plan plan_of(const ParameterStore& store, int32_t number) {
  const ParameterGroup& group = store.groups()[static_cast<size_t>(number)];
  Plan plan;
  for (const ParameterSpec& p : store.specs()) {
    if (p.group != number) continue;
    plan.factors += factor_count(p);
    int64_t factors = p.factors;
    for (const FactorShape& shape : factor_shapes(p)) {
      const int64_t first = p.offset + shape.first;
      const OwnedRange own = owned_part(group, first, first + shape.rows * shape.cols);
      // Arrays with the own ranges alone have element `own.begin` at `own.local`.
      const auto place = [&](StateArray a) {
        return group.holds_ranges(a) ? own.local - (own.begin - first) : first;
      };
      plan.tensors.push_back({.rows = shape.rows,
                              .cols = shape.cols,
                              .begin = own.begin - first,
                              .end = own.end - first,
                              .master = place(StateArray::master),
                              .grad = place(StateArray::gradient),
                              .compute = place(StateArray::compute),
                              .factors = factors,
                              .decay = p.decay ? DecayRule::decayed : DecayRule::plain});
      if (shape.rows > 1) plan.widest = std::max(plan.widest, shape.cols);
      factors += shape.factors();
    }
  }
  plan.pieces = kernels::adafactor_pieces(plan.tensors, plan.partials);
  return plan;
}

template <class T>
Buffer on_device(Device device, const Stream& stream, const std::vector<T>& values) {
  Buffer out(device, values.size() * sizeof(T));
  copy_to_device(stream, out.data(), values.data(), out.bytes());
  return out;
}

}  // namespace

AdafactorStep::AdafactorStep(const ParameterStore& store, int32_t group, const Stream& stream,
                             parallel::Communicator& ranks)
    : group_(store.groups()[static_cast<size_t>(group)]),
      rounds_(store.compute_type() != store.wide_type()),
      ranks_(ranks) {
  const Plan plan = plan_of(store, group);
  const Device device = store.device();
  tensors_ = on_device(device, stream, plan.tensors);
  pieces_ = on_device(device, stream, plan.pieces);
  sums_ = Buffer(device, static_cast<size_t>(plan.factors) * sizeof(double));
  totals_ = Buffer(device, 2 * plan.tensors.size() * sizeof(double));
  scratch_ = Buffer(device, plan.scratch());
  stream.synchronize();  // before `plan` goes
  args_ = {.master = group_.array(StateArray::master).data(),
           .grad = group_.array(StateArray::gradient).data(),
           .factors = group_.array(StateArray::factors).data(),
           .ema = group_.array(StateArray::average).data(),
           .compute = rounds_ ? group_.array(StateArray::compute).data() : nullptr,
           .sums = sums_.as<double>(),
           .totals = totals_.as<double>(),
           .scratch = scratch_.data(),
           .tensors = tensors_.as<AdafactorTensor>(),
           .pieces = pieces_.as<AdafactorPiece>(),
           .tensor_count = std::ssize(plan.tensors),
           .piece_count = std::ssize(plan.pieces),
           .factor_count = plan.factors,
           .partial_count = plan.partials,
           .widest = plan.widest,
           .dtype = store.wide_type(),
           .compute_type = store.compute_type()};
}

size_t AdafactorStep::scratch_bytes(const ParameterStore& store, int32_t group) {
  const Plan plan = plan_of(store, group);
  return plan.tensors.size() * (sizeof(AdafactorTensor) + 2 * sizeof(double)) +
         plan.pieces.size() * sizeof(AdafactorPiece) +
         static_cast<size_t>(plan.factors) * sizeof(double) + plan.scratch();
}

std::vector<parallel::Collective> AdafactorStep::collectives() const {
  if (group_.owns_all()) return {};
  const parallel::Group& ranks = group_.sharing().ranks;
  return {{.group = ranks, .dtype = DType::f64, .count = args_.factor_count},
          {.group = ranks, .dtype = DType::f64, .count = 2 * args_.tensor_count}};
}

void AdafactorStep::enqueue(const Context& ctx, const OptimizerOptions& options, float token_budget,
                            const StepState* state) const {
  kernels::AdafactorArgs args = args_;
  args.relative = options.relative;
  args.weight_decay = options.weight_decay;
  args.clip_norm = options.clip_norm;
  args.ema_decay = options.ema_decay;
  args.token_budget = token_budget;
  args.schedule = options.schedule;
  args.state = state;
  const std::vector<parallel::Collective> sums = collectives();
  const auto sum = [&](size_t i, void* values) {
    if (!sums.empty()) ranks_.wait(ranks_.start(sums[i], nullptr, values, ctx), ctx);
  };
  kernels::adafactor_sums(ctx, args);
  sum(0, args.sums);
  kernels::adafactor_measure(ctx, args);
  sum(1, args.totals);
  kernels::adafactor_apply(ctx, args);
  if (!rounds_) group_.refresh_compute(ctx);
}

}  // namespace saturate::train
