// SPDX-License-Identifier: Apache-2.0
#include "train/micro_batches.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <tuple>

#include "kernels/elementwise/elementwise.h"
#include "train/loss_tape.h"

namespace saturate::train {
namespace {

using Axis = Layout::Axis;
using State = model::Transformer::State;

constexpr size_t kAlign = 256;
constexpr int kOperationBits = 20;  // of a moment; below them lies the number of an operation
constexpr int64_t kTransferred = (int64_t{1} << kOperationBits) - 1;
constexpr size_t kRandomBytes = 2 * sizeof(uint64_t);

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
// Planning runs nothing: any address will do for memory that is never touched.
char* nowhere() { return reinterpret_cast<char*>(uintptr_t{1} << 20); }

MicroBatches::Moment moment_of(size_t step, int64_t operation) {
  return static_cast<int64_t>(step) << kOperationBits | operation;
}

struct PassedValue {
  Value State::*member;
  int64_t rows;
};
std::vector<PassedValue> passed_values(const model::ModelConfig& config,
                                       const data::BatchShape& shape, int row_parts, int64_t item) {
  const model::Passing p = model::passing(config, item);
  const int64_t source = shape.source_rows / row_parts, target = shape.target_rows / row_parts;
  std::vector<PassedValue> values;
  if (p.stream) values.push_back({&State::stream, p.source_rows ? source : target});
  if (p.branch) values.push_back({&State::branch, p.source_rows ? source : target});
  if (p.memory) values.push_back({&State::memory, source});
  return values;
}

// v, or a copy of it where v does not lie in memory of its own in the arena, which can be put
// elsewhere.
Value own(Tape& t, Value v, const std::vector<std::pair<Value, char*>>& placed) {
  const Tape::Info i = t.info(v);
  const bool twice = std::ranges::any_of(placed, [&](const auto& p) { return p.first.id == v.id; });
  if (!i.external && t.storage_of(v) == v.id && !twice) return v;
  const Value copy = t.make("passed_on", i.dtype, i.rows, i.cols);
  t.record(
      "pass_on", {v}, {copy},
      [=](const Run& r) {
        kernels::cast(r.ctx, {.x = r(v),
                              .y = r(copy),
                              .count = i.rows * i.cols,
                              .x_type = i.dtype,
                              .y_type = i.dtype});
      },
      [=](Tape& tape) { tape.add_gradient(v, tape.gradient(copy)); });
  return copy;
}

void nothing(const Run&) {}

}  // namespace

int32_t MicroBatches::Slots::take() {
  const auto free = std::ranges::find(taken, false);
  const auto slot = static_cast<int32_t>(free - taken.begin());
  if (free == taken.end()) taken.push_back(true);
  taken[static_cast<size_t>(slot)] = true;
  return slot;
}

MicroBatches::MicroBatches(const model::Transformer& model, const ParameterStore& store,
                           const Setup& setup, const parallel::pipeline::Schedule& schedule,
                           const Layout& layout, StepState* state)
    : model_(model),
      store_(store),
      setup_(setup),
      schedule_(schedule),
      layout_(layout),
      batch_layout_(batch_layout_of(setup.shape, model.config(), layout)),
      state_rng_(state ? state->rng : nullptr) {
  const int32_t rank = layout.coordinate(Axis::pp);
  SAT_ASSERT(schedule.ranks() == layout.extent(Axis::pp));
  for (int32_t c = 0; c < schedule.chunks(); ++c) {
    if (schedule.rank_of[static_cast<size_t>(c)] == rank) chunks_.emplace_back().number = c;
  }
  make_rings();
  place_steps();
  allocate(store.allocated());
  for (Chunk& c : chunks_) record(c, state);
  plan_arena(store.allocated());
}

// A ring for each way over each boundary that this rank stands at.
void MicroBatches::make_rings() {
  const auto ring = [&](int32_t boundary) {
    Ring r;
    for (const PassedValue& v : passed_values(model_.config(), setup_.shape, layout_.row_parts(),
                                              model_.stages().range(boundary).first)) {
      r.offsets.push_back(r.bytes);
      r.bytes += aligned(static_cast<size_t>(v.rows * model_.config().d_model) *
                         size_of(store_.compute_type()));
    }
    rings_.push_back(std::move(r));
    return static_cast<int32_t>(rings_.size()) - 1;
  };
  for (size_t k = 0; k < chunks_.size(); ++k) {
    Chunk& c = chunks_[k];
    const bool follows = k > 0 && chunks_[k - 1].number + 1 == c.number;
    if (follows) {
      c.in = chunks_[k - 1].out;
      c.d_in = chunks_[k - 1].d_out;
    } else if (c.number > 0) {
      c.in = ring(c.number);
      c.d_in = ring(c.number);
    }
    if (c.number + 1 < schedule_.chunks()) {
      c.out = ring(c.number + 1);
      c.d_out = ring(c.number + 1);
    }
  }
}

void MicroBatches::place_steps() {
  const auto& list = schedule_.actions[static_cast<size_t>(layout_.coordinate(Axis::pp))];
  std::map<int32_t, size_t> local;
  for (size_t k = 0; k < chunks_.size(); ++k) local[chunks_[k].number] = k;
  // The last action that needs a micro-batch's memory: of a chunk, of the rank, and of what goes
  // back.
  std::map<std::pair<size_t, int32_t>, size_t> last_of_chunk, last_back;
  std::map<int32_t, size_t> last_of_rank;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& a = list[i];
    const size_t k = local.at(a.chunk);
    chunks_[k].split = chunks_[k].split || a.kind == ActionKind::input_gradient;
    if (a.computes()) last_of_chunk[{k, a.micro_batch}] = last_of_rank[a.micro_batch] = i;
    if (a.computes() || a.kind == ActionKind::send_backward) last_back[{k, a.micro_batch}] = i;
  }
  Slots blocks;
  std::map<int32_t, int32_t> block_of;
  std::map<std::pair<size_t, int32_t>, int32_t> stash_of;
  std::map<std::pair<int32_t, int32_t>, int32_t> place_of;  // by ring and micro-batch
  std::map<std::pair<size_t, bool>, int32_t> gradients;     // so far, by chunk and whether weights'
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& a = list[i];
    const int32_t m = a.micro_batch;
    Step s{.action = a, .chunk = local.at(a.chunk)};
    Chunk& c = chunks_[s.chunk];
    const auto take = [&](int32_t ring) {
      if (ring >= 0 && !place_of.contains({ring, m}))
        place_of[{ring, m}] = rings_[static_cast<size_t>(ring)].slots.take();
    };
    const auto release = [&](int32_t ring) {
      if (ring < 0) return;
      rings_[static_cast<size_t>(ring)].slots.release(place_of.at({ring, m}));
      place_of.erase({ring, m});
    };
    if (a.kind == ActionKind::forward) {
      s.takes_in = !block_of.contains(m);
      if (s.takes_in) block_of[m] = blocks.take();
      stash_of[{s.chunk, m}] = c.slots.take();
      take(c.out);
    }
    if (a.kind == ActionKind::receive_forward) take(c.in);
    if (a.kind == ActionKind::receive_backward) take(c.d_out);
    const bool gradient = a.kind == ActionKind::backward || a.kind == ActionKind::input_gradient;
    if (gradient) take(c.d_in);
    if (gradient || a.kind == ActionKind::weight_gradient) {
      s.accumulates = gradients[{s.chunk, !gradient}]++ > 0;
      if (a.kind == ActionKind::backward) ++gradients[{s.chunk, true}];
    }
    s.slot = a.computes() ? stash_of.at({s.chunk, m}) : 0;
    s.block = a.computes() ? block_of.at(m) : 0;
    s.places.assign(rings_.size(), -1);
    for (const int32_t ring : {c.in, c.out, c.d_in, c.d_out}) {
      if (ring >= 0 && place_of.contains({ring, m}))
        s.places[static_cast<size_t>(ring)] = place_of.at({ring, m});
    }
    // What lies in a ring between two chunks of this rank goes with the one before them.
    const bool ends = last_of_chunk.at({s.chunk, m}) == i;
    if (ends) {
      c.slots.release(stash_of.at({s.chunk, m}));
      if (schedule_.crosses(c.number)) release(c.in);
      release(c.out);
      release(c.d_out);
    }
    if (last_back.at({s.chunk, m}) == i && schedule_.crosses(c.number)) release(c.d_in);
    if (last_of_rank.at(m) == i) blocks.release(block_of.at(m));
    steps_.push_back(std::move(s));
  }
  blocks_ = blocks.count();
  // The last transfer of each place in a ring that nothing has waited for yet.
  std::map<std::pair<size_t, int32_t>, size_t> under_way;
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& s = steps_[i];
    for (size_t r = 0; r < rings_.size(); ++r) {
      if (s.places[r] < 0) continue;
      const std::pair place{r, s.places[r]};
      if (!s.action.computes()) {
        if (static_cast<int32_t>(r) == ring_of(s)) under_way[place] = i;
      } else if (const auto t = under_way.find(place); t != under_way.end()) {
        s.waits.push_back(t->second);
        under_way.erase(t);
      }
    }
  }
}

void MicroBatches::allocate(bool memory) {
  const auto words = static_cast<size_t>(batch_layout_.words) * sizeof(int32_t);
  block_bytes_ = words;
  if (blocks_ > 1) block_bytes_ = aligned(aligned(words) + kRandomBytes);
  const Stream stream(store_.device());
  const auto take = [&](Buffer& buffer, size_t bytes) {
    if (!memory) return nowhere();
    buffer = Buffer(store_.device(), bytes);
    fill_bytes(stream, buffer.data(), 0, bytes);
    return buffer.as<char>();
  };
  batch_ = reinterpret_cast<int32_t*>(take(batches_, batch_bytes()));
  for (Ring& r : rings_) {
    const size_t bytes = r.bytes * static_cast<size_t>(r.slots.count());
    r.base = take(r.memory, bytes);
    arena_bytes_ += bytes;
  }
  stream.synchronize();
}

void MicroBatches::record(Chunk& c, StepState* state) {
  const uint64_t* rng = state_rng_;
  if (blocks_ > 1)
    rng = reinterpret_cast<const uint64_t*>(
        reinterpret_cast<const char*>(batch_) +
        aligned(static_cast<size_t>(batch_layout_.words) * sizeof(int32_t)));
  c.tape = std::make_unique<Tape>(store_, TapeMode::training, rng);
  Tape& t = *c.tape;
  if (setup_.workspace_bytes > 0) t.set_workspace_bytes(setup_.workspace_bytes);
  Placed placed;
  record_forward(t, c, state, placed);
  for (const int32_t number : {c.in, c.out, c.d_in, c.d_out}) {
    if (number < 0) continue;
    c.blocks.push_back(number);
    const Ring& r = rings_[static_cast<size_t>(number)];
    t.per_slot(r.base, r.bytes, r.bytes);
  }
  Placed of_probe;
  const RecomputeChoice again =
      choose_recomputation(t, setup_.recompute, setup_.recompute_units,
                           [&](Tape& probe) { record_forward(probe, c, state, of_probe); });
  recompute_.units += again.units;
  recompute_.of += again.of;
  recompute_.bytes += again.bytes;
  recompute_.added_ms += again.added_ms;
  recompute_.micro_batch_ms += again.micro_batch_ms;
  t.backward(c.split);
  for (const auto& [value, memory] : placed) t.put_at(value, memory);
  c.arena_bytes = t.plan(c.slots.count());
  unshared_bytes_ += t.unshared_bytes();
}

void MicroBatches::record_forward(Tape& t, const Chunk& c, StepState* state, Placed& placed) const {
  const model::Stages& stages = model_.stages();
  const model::ItemRange items =
      stages.chunks() > 0 ? stages.range(c.number) : model::Items(model_.config()).all();
  const int64_t width = model_.config().d_model;
  for (size_t i = 0; i < store_.specs().size(); ++i) {
    if (!store_.specs()[i].holders.empty()) t.add_to_gradient({static_cast<int32_t>(i)});
  }
  const auto values = [&](int64_t item) {
    return passed_values(model_.config(), setup_.shape, layout_.row_parts(), item);
  };
  const auto ring = [&](int32_t number) -> const Ring& {
    return rings_[static_cast<size_t>(number)];
  };
  const auto external = [&](const char* label, int32_t number, size_t i, int64_t rows) {
    return t.external(label, t.compute_type(), rows, width,
                      ring(number).base + ring(number).offsets[i]);
  };
  State given;
  if (c.in >= 0) {
    const std::vector<PassedValue> from = values(items.first);
    for (size_t i = 0; i < from.size(); ++i) {
      const Value passed = external("passed", c.in, i, from[i].rows);
      const Value x = t.alias("chunk_input", passed);
      char* const back = ring(c.d_in).base + ring(c.d_in).offsets[i];
      t.record("chunk_input", {passed}, {x}, nothing, [=, &placed](Tape& tape) {
        const Value g = own(tape, tape.gradient(x), placed);
        placed.push_back({g, back});
        tape.record("passed_back", {g}, {}, nothing);
      });
      given.*from[i].member = x;
    }
  }
  const State left =
      record_items(t, model_, batch_layout_, batch_, block_bytes_, items, given,
                   {.label_smoothing = setup_.label_smoothing,
                    .grad_scale = 1.0f / static_cast<float>(setup_.shape.target_rows),
                    .device_scale = state ? &state->loss_scale : nullptr,
                    .totals = state ? state->totals : nullptr,
                    .routing = setup_.routing});
  if (c.out >= 0) {
    const std::vector<PassedValue> on = values(items.last);
    for (size_t i = 0; i < on.size(); ++i) {
      const Value y = own(t, left.*on[i].member, placed);
      placed.push_back({y, ring(c.out).base + ring(c.out).offsets[i]});
      t.record("passed", {y}, {}, nothing);
      t.set_gradient(y, external("gradient_passed", c.d_out, i, on[i].rows));
    }
  }
}

// Stashes lie one behind the other, and chunks share their scratch, since one runs at a time. With
// one slot a tape has no stash and what lives on lies in its scratch, which is then its own.
void MicroBatches::plan_arena(bool memory) {
  size_t own_bytes = 0, scratch = 0;
  const auto shares = [&](const Chunk& c) { return chunks_.size() > 1 && c.slots.count() > 1; };
  std::vector<size_t> offsets;
  for (const Chunk& c : chunks_) {
    offsets.push_back(own_bytes);
    const TapePlan& plan = c.tape->layout();
    own_bytes += aligned(shares(c) ? c.arena_bytes - plan.scratch_bytes : c.arena_bytes);
    if (shares(c)) scratch = std::max(scratch, plan.scratch_bytes);
  }
  arena_bytes_ += own_bytes + scratch;
  if (!memory) return;
  arena_ = Buffer(store_.device(), own_bytes + scratch);
  const Stream stream(store_.device());
  fill_bytes(stream, arena_.data(), 0, own_bytes + scratch);
  stream.synchronize();
  for (size_t k = 0; k < chunks_.size(); ++k) {
    chunks_[k].arena = arena_.as<char>() + offsets[k];
    if (shares(chunks_[k])) chunks_[k].scratch = arena_.as<char>() + own_bytes;
  }
}

size_t MicroBatches::operations() const noexcept {
  size_t n = 0;
  for (const Chunk& c : chunks_) n += c.tape->operations();
  return n;
}

MicroBatches::Moment MicroBatches::last_moment(size_t chunk, int32_t operation) const {
  const Chunk& c = chunks_[chunk];
  const OperationRange weights = c.split ? c.tape->range("weight_gradients") : OperationRange{};
  size_t gradient = 0, weight = 0, sent = 0;  // the last steps
  for (size_t i = 0; i < steps_.size(); ++i) {
    const ActionKind kind = steps_[i].action.kind;
    if (steps_[i].chunk != chunk) continue;
    if (kind == ActionKind::backward) gradient = weight = i;
    if (kind == ActionKind::input_gradient) gradient = i;
    if (kind == ActionKind::weight_gradient) weight = i;
    if (kind == ActionKind::send_backward) sent = i;
  }
  const bool in_weights = operation >= weights.begin && operation < weights.end;
  const size_t step = in_weights ? weight : gradient;
  return sent > step ? moment_of(sent, kTransferred) : moment_of(step, operation);
}

std::vector<MicroBatches::ReducedUnit> MicroBatches::reduced_units() const {
  std::map<std::pair<int32_t, size_t>, Moment> last;  // of all chunks
  for (size_t k = 0; k < chunks_.size(); ++k) {
    for (const Tape::ReducedUnit& u : chunks_[k].tape->reduced_units()) {
      Moment& moment = last[{u.group, u.bucket}];
      moment = std::max(moment, last_moment(k, u.operation));
    }
  }
  std::vector<ReducedUnit> units;
  for (const auto& [unit, moment] : last) units.push_back({unit.first, unit.second, moment});
  return units;
}

std::vector<MicroBatches::FinishedGradient> MicroBatches::finished_gradients() const {
  std::vector<FinishedGradient> finished;
  for (size_t k = 0; k < chunks_.size(); ++k) {
    for (const Tape::FinishedGradient& f : chunks_[k].tape->finished_gradients()) {
      if (store_.spec({f.parameter}).holders.empty())
        finished.push_back({f.parameter, last_moment(k, f.operation)});
    }
  }
  std::ranges::sort(finished, {}, [](const auto& f) { return std::tuple(f.moment, f.parameter); });
  return finished;
}

int32_t MicroBatches::ring_of(const Step& s) const {
  const Chunk& c = chunk_of(s);
  switch (s.action.kind) {
    case ActionKind::send_forward:
      return c.out;
    case ActionKind::receive_forward:
      return c.in;
    case ActionKind::send_backward:
      return c.d_in;
    default:
      return c.d_out;
  }
}

parallel::Collective MicroBatches::transfer(const Action& a) const {
  const bool forward = a.kind == ActionKind::send_forward || a.kind == ActionKind::receive_forward;
  const bool sends = a.kind == ActionKind::send_forward || a.kind == ActionKind::send_backward;
  const int32_t boundary = a.chunk + (forward == sends);  // the chunk behind it
  const int32_t peer = schedule_.rank_of[static_cast<size_t>(boundary - (forward != sends))];
  parallel::Collective c{.kind = parallel::CollectiveKind::send_receive,
                         .group = layout_.group({Axis::pp}),
                         .dtype = store_.compute_type()};
  c.send_counts.resize(c.group.ranks.size());
  c.receive_counts.resize(c.group.ranks.size());
  for (const Chunk& k : chunks_) {
    if (k.number != a.chunk) continue;
    const int32_t ring = boundary == a.chunk ? k.in : k.out;
    (sends ? c.send_counts : c.receive_counts)[static_cast<size_t>(peer)] =
        static_cast<int64_t>(rings_[static_cast<size_t>(ring)].bytes / size_of(c.dtype));
  }
  return c;
}

std::vector<MicroBatches::Transfer> MicroBatches::transfers() const {
  std::vector<Transfer> list;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Action& a = steps_[i].action;
    // Before what waits for the transfer to have begun.
    if (!a.computes()) list.push_back({moment_of(i, kTransferred - 1), transfer(a)});
  }
  return list;
}

std::vector<OperationRange> MicroBatches::runs_of(const Step& s) const {
  const Chunk& c = chunk_of(s);
  switch (s.action.kind) {
    case ActionKind::forward:
      return {c.tape->range("forward")};
    case ActionKind::weight_gradient:
      return {c.tape->range("weight_gradients")};
    case ActionKind::backward:
      if (c.split) return {c.tape->range("backward"), c.tape->range("weight_gradients")};
      [[fallthrough]];
    case ActionKind::input_gradient:
      return {c.tape->range("backward")};
    default:
      return {};
  }
}

std::vector<MicroBatches::Listed> MicroBatches::list() const {
  std::vector<Listed> all;
  for (const Step& s : steps_) all.push_back({s.action, s.chunk, runs_of(s), s.waits});
  return all;
}

std::pair<size_t, int32_t> MicroBatches::place_of(Moment moment) {
  return {static_cast<size_t>(moment >> kOperationBits),
          static_cast<int32_t>(moment & kTransferred)};
}

void MicroBatches::run(const Context& ctx, std::span<const Lane> lanes, size_t step,
                       OperationRange range, const Hooks& hooks) const {
  const Step& s = steps_[step];
  const Chunk& c = chunk_of(s);
  std::vector<int32_t> block_slots{s.block};
  for (const int32_t ring : c.blocks)
    block_slots.push_back(std::max(s.places[static_cast<size_t>(ring)], 0));
  std::function<void(int32_t)> after;
  if (hooks.before) hooks.before(moment_of(step, range.begin));
  if (hooks.before || hooks.after) {
    after = [&](int32_t operation) {
      if (hooks.after) hooks.after(moment_of(step, operation));
      if (hooks.before && operation + 1 < range.end) hooks.before(moment_of(step, operation + 1));
    };
  }
  c.tape->run(ctx, c.arena,
              {.range = range,
               .slot = s.slot,
               .accumulate = s.accumulates,
               .block_slots = block_slots,
               .scratch = c.scratch,
               .scales_known = hooks.scales_known,
               .lanes = lanes,
               .after = after});
}

void MicroBatches::enqueue(const Context& ctx, const Stream& stream, std::span<const Lane> lanes,
                           parallel::Communicator& ranks, kernels::BatchIntakeArgs intake,
                           const Hooks& hooks) const {
  for (size_t i = 0; i < store_.specs().size() && store_.sharing().zero < 2; ++i) {
    const ParameterSpec& p = store_.specs()[i];
    if (p.holders.empty() || p.frozen) continue;
    fill_bytes(stream, store_.gradient({static_cast<int32_t>(i)}), 0,
               static_cast<size_t>(p.size()) * size_of(store_.wide_type()));
  }
  std::vector<parallel::Ticket> tickets(steps_.size());  // of transfers
  parallel::Ticket waited;                               // all up to it have been waited for
  const std::vector<FinishedGradient> finished = finished_gradients();
  const Moment first = finished.empty() ? moment_of(steps_.size(), 0) : finished.front().moment;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& s = steps_[i];
    Hooks here = hooks;
    if (moment_of(i + 1, 0) <= first) here.after = {};
    if (!s.action.computes()) {
      const auto ring = static_cast<size_t>(ring_of(s));
      const auto place = static_cast<size_t>(s.places[ring]);
      char* const block = rings_[ring].base + place * rings_[ring].bytes;
      const bool sends =
          s.action.kind == ActionKind::send_forward || s.action.kind == ActionKind::send_backward;
      tickets[i] =
          ranks.start(transfer(s.action), sends ? block : nullptr, sends ? nullptr : block, ctx);
      if (here.after) here.after(moment_of(i, kTransferred));
      continue;
    }
    for (const size_t transfer : s.waits) {
      const parallel::Ticket t = tickets[transfer];
      if (t.number > waited.number) ranks.wait(waited = t, ctx);
    }
    if (s.takes_in) {
      char* const block =
          reinterpret_cast<char*>(batch_) + static_cast<size_t>(s.block) * block_bytes_;
      intake.dst = reinterpret_cast<int32_t*>(block);
      kernels::batch_intake(ctx, intake);
      if (blocks_ > 1)
        copy_on_device(stream,
                       block + aligned(static_cast<size_t>(batch_layout_.words) * sizeof(int32_t)),
                       state_rng_, kRandomBytes);
    }
    for (const OperationRange& range : runs_of(s)) run(ctx, lanes, i, range, here);
  }
}

int32_t MicroBatches::lanes() const noexcept {
  int32_t most = 1;
  for (const Chunk& c : chunks_) most = std::max(most, c.tape->layout().lanes);
  return most;
}

std::vector<MicroBatches::Moment> MicroBatches::first_uses() const {
  std::vector<Moment> first(store_.specs().size(), std::numeric_limits<Moment>::max());
  for (size_t k = 0; k < chunks_.size(); ++k) {
    const auto step = std::ranges::find_if(steps_, [&](const Step& s) {
      return s.chunk == k && s.action.kind == ActionKind::forward;
    });
    const Tape& t = *chunks_[k].tape;
    for (int32_t i = 0; i < static_cast<int32_t>(t.operations()); ++i) {
      for (const Value v : t.operation(static_cast<size_t>(i)).reads) {
        const int32_t p = v ? t.info({t.storage_of(v)}).parameter : -1;
        if (p < 0) continue;
        // What only a later segment reads is whole before the first one, which is early enough.
        const Moment m = moment_of(static_cast<size_t>(step - steps_.begin()), i);
        first[static_cast<size_t>(p)] = std::min(first[static_cast<size_t>(p)], m);
      }
    }
  }
  return first;
}

}  // namespace saturate::train
