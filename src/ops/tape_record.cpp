// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ops/tape.h"

namespace saturate {

Tape::Tape(const ParameterStore& parameters, TapeMode mode, const uint64_t* rng_state)
    : parameters_(parameters),
      mode_(mode),
      workspace_bytes_(parameters.device().is_cuda() ? kWorkspaceBytes : 0),
      rng_state_(rng_state) {
  const size_t n = parameters.specs().size();
  parameter_values_.resize(n);
  wide_parameter_values_.resize(n);
  parameter_gradients_.resize(n);
  last_contribution_.assign(n, -1);
}

Value Tape::add(Info info) {
  SAT_ASSERT(!planned_);
  values_.push_back(info);
  gradients_.push_back({});
  return {static_cast<int32_t>(values_.size() - 1)};
}

Value Tape::external(const char* label, DType dtype, int64_t rows, int64_t cols, void* memory) {
  return add({.label = label,
              .dtype = dtype,
              .rows = rows,
              .cols = cols,
              .external = true,
              .memory = memory});
}

Value Tape::make(const char* label, DType dtype, int64_t rows, int64_t cols) {
  return add({.label = label, .dtype = dtype, .rows = rows, .cols = cols});
}

Value Tape::alias(const char* label, Value of) {
  of = renamed(of);
  Info i = info(of);
  i.label = label;
  if (i.root < 0) i.root = of.id;
  i.parameter = -1;
  return add(i);
}

Value Tape::parameter(ParameterId id) {
  const ParameterSpec& s = parameters_.spec(id);
  if (parameters_.group_of(s).sharing().zero >= 3) return gathered(id);
  if (s.storage == Storage::nf4) return dequantized(id);
  Value& v = parameter_values_[static_cast<size_t>(id.index)];
  if (!v) {
    v = external(s.name.c_str(), compute_type(), s.rows, s.cols, parameters_.compute(id));
    at(v).parameter = id.index;
  }
  return v;
}

Value Tape::dequantized(ParameterId id) {
  const Value v = gathered_parameter(id);
  record("dequantize", {}, {v},
         [=, this](const Run& r) { parameters_.dequantize(r.ctx, id, r(v)); });
  return v;
}

Value Tape::parameter_again(Value w) {
  const int32_t p = info(w).parameter;
  const bool made = p >= 0 && parameters_.spec({p}).storage == Storage::nf4;
  return made ? dequantized({p}) : w;
}

Value Tape::wide_parameter(ParameterId id) {
  Value& v = wide_parameter_values_[static_cast<size_t>(id.index)];
  if (!v) {
    const ParameterSpec& s = parameters_.spec(id);
    v = external(s.name.c_str(), wide_type(), s.rows, s.cols, parameters_.master(id));
    at(v).parameter = id.index;
  }
  return v;
}

const kernels::PackedWeights* Tape::packed(Value v) const {
  const Info& i = info(v);
  if (training() || i.parameter < 0 || i.memory == nullptr) return nullptr;
  const ParameterId id{i.parameter};
  return i.memory == parameters_.compute(id) ? parameters_.packed(id) : nullptr;
}

const kernels::PackedWeights* Tape::packed_table(Value v) const {
  const Info& i = info(v);
  const bool looked_up = i.parameter >= 0 && parameters_.is_packed(ParameterId{i.parameter});
  return looked_up ? packed(v) : nullptr;
}

Value Tape::gathered_parameter(ParameterId id) {
  const ParameterSpec& s = parameters_.spec(id);
  const Value v = make(s.name.c_str(), compute_type(), s.rows, s.cols);
  at(v).parameter = id.index;
  return v;
}

int32_t Tape::storage_of(Value v) const { return info(v).root >= 0 ? info(v).root : v.id; }

void Tape::keep(Value v) { values_[static_cast<size_t>(storage_of(v))].kept = true; }

int32_t Tape::per_slot(const void* base, size_t bytes, size_t stride) {
  slot_blocks_.push_back({static_cast<const char*>(base), bytes, stride});
  return static_cast<int32_t>(slot_blocks_.size()) - 1;
}

void Tape::put_at(Value v, void* memory) {
  SAT_ASSERT(!planned_ && storage_of(v) == v.id && !info(v).external);
  at(v).external = true;
  at(v).memory = memory;
}

// 24 bits: stack 2, layer 12, mixer 5, kind 5.
void Tape::layer(Stack stack, int64_t layer, int64_t mixer) {
  if (layer < 0 || layer >= 1 << 12 || mixer < 0 || mixer >= 1 << 5) {
    throw Error(Errc::invalid_argument, "tape",
                fmt::format("layer {}, mixer {}: masks know layers below 4096 and mixers below 32",
                            layer, mixer));
  }
  site_ = static_cast<uint32_t>(stack) << 22 | static_cast<uint32_t>(layer) << 10 |
          static_cast<uint32_t>(mixer) << 5;
}

RngRef Tape::random(MaskKind kind) {
  const uint32_t site = site_ | static_cast<uint32_t>(kind);
  if (!sites_.insert(site).second) {
    throw Error(
        Errc::invalid_argument, "tape",
        fmt::format("two operations of kind {} in layer {}, mixer {} of stack {} would draw "
                    "the same masks; give each its layer() or a kind of its own",
                    site & 31, site >> 10 & 4095, site >> 5 & 31, site >> 22));
  }
  return {.state = rng_state_,
          .site = site,
          .first_row = row_runs(1).front().first,
          .rows = whole_rows_};
}

std::vector<RowRun> Tape::row_runs(int64_t first, int64_t rows) const {
  if (chunks_ == 0) return {{.rows = rows, .first = first}};
  const int64_t chunk = whole_rows_ / chunks_;
  std::vector<RowRun> runs;
  for (int64_t at = 0; at < rows; at += runs.back().rows) {
    const int64_t row = first + at, place = row / chunk;
    const int64_t number = place % 2 == 0 ? place / 2 : chunks_ - 1 - place / 2;
    runs.push_back({.at = at,
                    .rows = std::min(rows - at, (place + 1) * chunk - row),
                    .first = number * chunk + row % chunk});
  }
  return runs;
}

Value Tape::renamed(Value v) const {
  if (!renames_) return v;
  const auto other = renames_->find(v.id);
  return other == renames_->end() ? v : other->second;
}

void Tape::record(const char* op, std::vector<Value> reads, std::vector<Value> writes, RunFn run,
                  BackwardFn backward, OperationTraits traits) {
  SAT_ASSERT(!planned_ && traits.lane >= 0);
  for (Value& v : reads) v = renamed(v);
  operations_.push_back({.name = op,
                         .reads = std::move(reads),
                         .writes = std::move(writes),
                         .run = std::move(run),
                         .backward = training() ? std::move(backward) : BackwardFn{},
                         .traits = traits,
                         .segment = static_cast<int32_t>(segments_.size()) - 1,
                         .region = region_,
                         .renames = renames_});
}

void Tape::record_parameter_gradient(const char* op, std::vector<Value> reads,
                                     std::vector<Value> writes, RunFn run, OperationTraits traits) {
  record(op, std::move(reads), std::move(writes), std::move(run), {}, std::move(traits));
  operations_.back().deferrable = true;
}

void Tape::may_be_grouped(GroupMember member) {
  SAT_ASSERT(operations_.back().deferrable);
  operations_.back().member = std::make_shared<const GroupMember>(std::move(member));
}

void Tape::may_be_grouped(RowSum sum) {
  SAT_ASSERT(operations_.back().deferrable);
  operations_.back().row_sum = std::make_shared<const RowSum>(std::move(sum));
}

void Tape::extend(int32_t operation, Value read, std::initializer_list<Value> writes) {
  Operation& o = operations_[static_cast<size_t>(operation)];
  SAT_ASSERT(o.region < 0 && !planned_);
  o.reads.push_back(read);
  o.writes.insert(o.writes.end(), writes);
}

void Tape::may_fold_later(Value stage, std::vector<Value> folded) {
  operations_.back().stage = stage;
  std::erase(folded, Value{});
  operations_.back().folded = std::move(folded);
}

void Tape::segment(const char* name) { segments_.push_back(name); }

void Tape::begin_region() {
  SAT_ASSERT(region_ < 0);
  region_ = static_cast<int32_t>(regions_.size());
  regions_.push_back({static_cast<int32_t>(operations_.size()), -1});
}

void Tape::end_region() {
  SAT_ASSERT(region_ >= 0);
  region_ = -1;
  OperationRange& r = regions_.back();
  r.end = static_cast<int32_t>(operations_.size());
  if (r.size() == 0) regions_.pop_back();
}

void Tape::again_from(Value kept, std::vector<Value> reads, RunFn run) {
  operations_.back().shortcut = std::make_shared<Shortcut>(kept, std::move(reads), std::move(run));
}

void Tape::recompute(int32_t operation, Recompute how) {
  Operation& o = operations_[static_cast<size_t>(operation)];
  SAT_ASSERT(how != Recompute::from_kept || o.shortcut);
  o.recompute = how;
}

}  // namespace saturate
