// SPDX-License-Identifier: Apache-2.0
// Parameters and gradients that ranks share (ParameterStore::share): a unit's parameters are
// gathered before its operations and forgotten after them, its gradients are summed over the ranks as
// soon as they are finished. All of it is on a lane of its own, beside the computation.
#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "ops/layout.h"
#include "ops/tape.h"

namespace saturate {
namespace {

using parallel::Collective;
using parallel::CollectiveKind;

constexpr int32_t kLane = 1;

OperationTraits on_lane(const std::shared_ptr<const Collective>& c) {
  return {.kind = OperationKind::collective,
          .group = c->group.id,
          .bytes = c->elements() * static_cast<int64_t>(size_of(c->dtype)),
          .lane = kLane,
          .collective = c};
}

size_t bytes_of(int64_t elements, DType type) {
  return static_cast<size_t>(elements) * size_of(type);
}

// Consecutive elements of a unit that belong to parameters.
void join(std::vector<parallel::FlatRange>& pieces, parallel::FlatRange piece) {
  if (piece.begin >= piece.end) return;
  if (!pieces.empty() && pieces.back().end == piece.begin) {
    pieces.back().end = piece.end;
  } else {
    pieces.push_back(piece);
  }
}

}  // namespace

Value Tape::part(const char* label, Value of, int64_t rows, int64_t cols, int64_t element) {
  const DType type = info(of).dtype;
  return add({.label = label,
              .dtype = type,
              .rows = rows,
              .cols = cols,
              .root = of.id,
              .offset = bytes_of(element, type)});
}

// Forward: the gather starts when the unit before begins its work, so it runs beside that work and
// no more than two units are whole at once. In a region it runs again for the gradients, by the same
// rule (run_again()).
Value Tape::gathered(ParameterId id) {
  const ParameterSpec& wanted = parameters_.spec(id);
  const ParameterGroup& group = parameters_.group_of(wanted);
  const size_t bucket = group.bucket_of(wanted.offset);
  GatheredUnit& unit = gathered_[{wanted.group, bucket}];
  const bool there = !unit.parts.empty() && unit.region == region_ && gathers_ - unit.number < 2;
  if (there) return unit.parts.at(id.index);
  const parallel::FlatRange range = group.buckets()[bucket];
  const ParameterGroup::Sharing& sharing = group.sharing();
  const int64_t elements = range.end - range.begin;
  const Value whole = make("gathered_unit", compute_type(), 1, elements);
  unit = {.parts = {}, .region = region_, .number = ++gathers_};
  std::vector<Value> writes = {whole};
  for (int32_t i = 0; i < std::ssize(parameters_.specs()); ++i) {
    const ParameterSpec& p = parameters_.spec({i});
    if (p.group != wanted.group || p.offset < range.begin || p.offset >= range.end) continue;
    const Value v = part(p.name.c_str(), whole, p.rows, p.cols, p.offset - range.begin);
    at(v).parameter = i;
    unit.parts.emplace(i, v);
    writes.push_back(v);
  }
  const StateArray from = group.keeps(StateArray::compute, parameters_.purpose())
                              ? StateArray::compute
                              : StateArray::master;
  const int64_t slice = elements / sharing.ranks.size();
  const char* const held = group.array(from).as<const char>();
  const size_t place = bytes_of(group.owned()[bucket].local, compute_type());
  const auto c = std::make_shared<const Collective>(Collective{.kind = CollectiveKind::all_gather,
                                                               .group = sharing.ranks,
                                                               .dtype = compute_type(),
                                                               .count = slice});
  parallel::Communicator* const ranks = parameters_.layout()->communicator();
  Value now;  // what is written before this unit begins
  for (auto o = operations_.rbegin(); o != operations_.rend() && !now; ++o)
    if (o->traits.lane == 0 && !o->writes.empty()) now = o->writes[0];
  record(
      "gather_unit", {before_gather_}, writes,
      [=](const Run& r) { ranks->wait(ranks->start(*c, held + place, r(whole), r.ctx), r.ctx); },
      {}, on_lane(c));
  before_gather_ = now;
  operations_.back().paced = true;
  if (training() && region_ >= 0) operations_.back().recompute = Recompute::whole;
  return unit.parts.at(id.index);
}

Value Tape::unit_gradient(int32_t parameter) {
  const ParameterSpec& p = parameters_.spec({parameter});
  const ParameterGroup& group = parameters_.group_of(p);
  const size_t bucket = group.bucket_of(p.offset);
  const parallel::FlatRange range = group.buckets()[bucket];
  auto unit = std::ranges::find_if(unit_gradients_, [&](const UnitGradient& u) {
    return u.group == p.group && u.bucket == bucket;
  });
  if (unit == unit_gradients_.end()) {
    const Value whole = make("unit_gradient", wide_type(), 1, range.end - range.begin);
    // Where its memory may begin: record_reductions() makes it wait. It moves with what fills it.
    record_parameter_gradient("begin_unit_gradient", {}, {whole}, [](const Run&) {});
    unit_gradients_.push_back({whole, p.group, bucket});
    unit = std::prev(unit_gradients_.end());
  }
  return part("parameter_gradient", unit->whole, p.rows, p.cols, p.offset - range.begin);
}

// Each unit's sum follows the last operation that adds to it; the memory of a unit's gradient is
// free again for the second after it. Sums are added to what this rank holds of them, which begins
// at zero.
void Tape::record_reductions() {
  parallel::Communicator* const ranks = parameters_.layout()->communicator();
  const DType wide = wide_type(), sent_type = parameters_.sharing().reduce;
  const bool rounds = size_of(sent_type) == 2;
  std::vector<int32_t> behind;  // by reduction: the operation that it follows
  std::vector<Value> held;
  const auto first = static_cast<int32_t>(operations_.size());
  for (const UnitGradient& unit : unit_gradients_) {
    const ParameterGroup& group = parameters_.groups()[static_cast<size_t>(unit.group)];
    const ParameterGroup::Sharing& sharing = group.sharing();
    const parallel::FlatRange range = group.buckets()[unit.bucket];
    const bool shared = group.holds_ranges(StateArray::gradient);
    const int n = shared ? sharing.ranks.size() : 1;
    const int64_t elements = range.end - range.begin, slice = elements / n;
    const int64_t from = shared ? sharing.position * slice : 0;  // of what stays here
    int32_t last = -1;
    std::vector<parallel::FlatRange> pieces;  // of the slice
    for (size_t i = 0; i < parameter_gradients_.size(); ++i) {
      const ParameterSpec& p = parameters_.specs()[i];
      if (!parameter_gradients_[i] || p.group != unit.group || p.offset < range.begin ||
          p.offset >= range.end)
        continue;
      last = std::max(last, last_contribution_[i]);
      const int64_t begin = p.offset - range.begin - from;
      join(pieces, {std::max<int64_t>(begin, 0), std::min(begin + p.size(), slice)});
    }
    const int64_t place = shared ? group.owned()[unit.bucket].local : range.begin;
    char* const array = group.array(StateArray::gradient).as<char>();
    held.push_back(external("held_gradient", wide, 1, slice,
                            array == nullptr ? nullptr : array + bytes_of(place, wide)));
    const Value to = held.back(), whole = unit.whole;
    const auto add_pieces = [=](const Run& r, const char* sum) {
      for (const parallel::FlatRange& piece : pieces) {
        char* const y = r.as<char>(to) + bytes_of(piece.begin, wide);
        kernels::add(r.ctx, {.a = y,
                             .b = sum + bytes_of(piece.begin, wide),
                             .y = y,
                             .count = piece.end - piece.begin,
                             .dtype = wide});
      }
    };
    behind.push_back(last);
    if (sharing.ranks.size() == 1) {
      record("hold_gradient", {whole}, {to},
             [=](const Run& r) { add_pieces(r, r.as<char>(whole)); });
      operations_.back().segment = operations_[static_cast<size_t>(last)].segment;
      continue;
    }
    Collective sum{.group = sharing.ranks, .dtype = wide, .count = slice};
    const Value here = shared ? make("reduced_slice", wide, 1, slice) : Value{};
    if (!shared || !rounds) {
      if (shared) sum.kind = CollectiveKind::reduce_scatter;
      const auto c = std::make_shared<const Collective>(std::move(sum));
      record(
          "reduce_gradient", {whole}, {to, whole, here},
          [=](const Run& r) {
            void* const out = shared ? r(here) : r(whole);
            ranks->wait(ranks->start(*c, shared ? r(whole) : nullptr, out, r.ctx), r.ctx);
            add_pieces(r, static_cast<const char*>(out));
          },
          {}, on_lane(c));
    } else {
      // Each rank gets the others' parts of its slice rounded once, and adds them up in full.
      const Value sent = make("rounded_gradient", sent_type, 1, elements);
      const Value got = make("rounded_slices", sent_type, 1, elements);
      sum.kind = CollectiveKind::all_to_all;
      sum.dtype = sent_type;
      sum.count = 0;
      sum.send_counts.assign(static_cast<size_t>(n), slice);
      sum.receive_counts = sum.send_counts;
      const auto c = std::make_shared<const Collective>(std::move(sum));
      record(
          "exchange_gradient", {whole}, {to, here, sent, got},
          [=](const Run& r) {
            kernels::cast(r.ctx, {.x = r(whole),
                                  .y = r(sent),
                                  .count = elements,
                                  .x_type = wide,
                                  .y_type = sent_type});
            ranks->wait(ranks->start(*c, r(sent), r(got), r.ctx), r.ctx);
            for (int j = 0; j < n; ++j) {
              kernels::cast(r.ctx, {.x = r.as<char>(got) + bytes_of(j * slice, sent_type),
                                    .y = r(here),
                                    .count = slice,
                                    .x_type = sent_type,
                                    .y_type = wide});
              add_pieces(r, r.as<char>(here));
            }
          },
          {}, on_lane(c));
    }
    operations_.back().segment = operations_[static_cast<size_t>(last)].segment;
  }
  std::vector<int32_t> order, places(operations_.size());
  for (int32_t i = 0; i < first; ++i) {
    order.push_back(i);
    for (size_t k = 0; k < behind.size(); ++k)
      if (behind[k] == i) order.push_back(first + static_cast<int32_t>(k));
  }
  reorder(order);
  for (size_t at = 0; at < order.size(); ++at)
    places[static_cast<size_t>(order[at])] = static_cast<int32_t>(at);
  for (size_t k = 2; k < unit_gradients_.size(); ++k) {
    const auto opens = std::ranges::find_if(operations_, [&](const Operation& o) {
      return !o.writes.empty() && o.writes[0] == unit_gradients_[k].whole;
    });
    if (places[static_cast<size_t>(first) + k - 2] < opens - operations_.begin())
      opens->reads.push_back(held[k - 2]);
  }
}

std::vector<Tape::ReducedUnit> Tape::reduced_units() const {
  std::vector<ReducedUnit> reduced;
  for (const UnitGradient& unit : unit_gradients_) {
    // The sum is the last operation that touches the unit.
    const auto sum = std::ranges::find_if(operations_.rbegin(), operations_.rend(), [&](auto& o) {
      return !o.reads.empty() && o.reads[0] == unit.whole;
    });
    SAT_ASSERT(sum != operations_.rend());
    reduced.push_back({unit.group, unit.bucket,
                       static_cast<int32_t>(std::distance(sum, operations_.rend())) - 1});
  }
  return reduced;
}

}  // namespace saturate
