// SPDX-License-Identifier: Apache-2.0
#include "ops/tape.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "ops/arena_plan.h"

namespace saturate {

void* Run::operator()(Value v) const {
  if (!v) return nullptr;
  const Tape::Info* info = &tape_.info(v);
  if (info->root >= 0) info = &tape_.values_[static_cast<size_t>(info->root)];
  return info->external ? info->memory : arena_ + info->offset;
}

Tape::Tape(const ParameterStore& parameters, TapeMode mode, const uint64_t* rng_state)
    : parameters_(parameters), mode_(mode), rng_state_(rng_state) {
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
  Info i = info(of);
  i.label = label;
  if (i.root < 0) i.root = of.id;
  i.parameter = -1;
  return add(i);
}

Value Tape::parameter(ParameterId id) {
  Value& v = parameter_values_[static_cast<size_t>(id.index)];
  if (!v) {
    const ParameterSpec& s = parameters_.spec(id);
    v = external(s.name.c_str(), compute_type(), s.rows, s.cols, parameters_.compute(id));
    at(v).parameter = id.index;
  }
  return v;
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
  return {.state = rng_state_, .site = site};
}

int32_t Tape::storage_of(Value v) const { return info(v).root >= 0 ? info(v).root : v.id; }

void Tape::keep(Value v) { values_[static_cast<size_t>(storage_of(v))].kept = true; }

void Tape::touch(Value v, int32_t operation) {
  if (!v) return;
  Info& owner = values_[static_cast<size_t>(storage_of(v))];
  if (owner.first < 0) owner.first = operation;
  owner.last = std::max(owner.last, operation);
}

void Tape::record(const char* op, std::vector<Value> reads, std::vector<Value> writes, RunFn run,
                  BackwardFn backward) {
  SAT_ASSERT(!planned_);
  operations_.push_back({op, std::move(reads), std::move(writes), std::move(run),
                         training() ? std::move(backward) : BackwardFn{}});
}

void Tape::record_parameter_gradient(const char* op, std::vector<Value> reads,
                                     std::vector<Value> writes, RunFn run) {
  record(op, std::move(reads), std::move(writes), std::move(run));
  operations_.back().deferrable = true;
}

Value Tape::gradient(Value v) const { return v ? gradients_[static_cast<size_t>(v.id)] : Value{}; }

void Tape::set_gradient(Value v, Value g) { gradients_[static_cast<size_t>(v.id)] = g; }

void Tape::add_gradient(Value v, Value g) {
  const Value before = gradient(v);
  if (!before) {
    set_gradient(v, g);
    return;
  }
  const Info i = info(v);
  const Value sum = make("gradient_sum", i.dtype, i.rows, i.cols);
  record("gradient_sum", {before, g}, {sum}, [=](const Run& r) {
    kernels::add(
        r.ctx,
        {.a = r(before), .b = r(g), .y = r(sum), .count = i.rows * i.cols, .dtype = i.dtype});
  });
  set_gradient(v, sum);
}

Value Tape::parameter_gradient(Value parameter, bool* first) {
  const int32_t p = info(parameter).parameter;
  SAT_ASSERT(p >= 0);
  const ParameterSpec& s = parameters_.specs()[static_cast<size_t>(p)];
  Value& g = parameter_gradients_[static_cast<size_t>(p)];
  *first = !g;
  if (!g) {
    g = s.frozen ? make("frozen_gradient", wide_type(), s.rows, s.cols)
                 : external("parameter_gradient", wide_type(), s.rows, s.cols,
                            parameters_.gradient({p}));
  }
  if (!s.frozen)
    last_contribution_[static_cast<size_t>(p)] = static_cast<int32_t>(operations_.size());
  return g;
}

void Tape::backward() {
  SAT_ASSERT(training());
  for (size_t i = operations_.size(); i-- > 0;) {
    if (!operations_[i].backward) continue;
    const auto& writes = operations_[i].writes;
    const bool reached =
        std::any_of(writes.begin(), writes.end(), [&](Value v) { return v && gradient(v); });
    if (!reached) continue;
    const BackwardFn backward = std::move(operations_[i].backward);  // recording moves operations_
    backward(*this);
  }
  const auto& specs = parameters_.specs();
  if (std::any_of(specs.begin(), specs.end(), [](const auto& s) { return s.frozen; }))
    leave_out_unread();
  defer_parameter_gradients();
}

// Backwards: an operation stays when somebody outside or an operation that stays reads one of its
// results. By storage, as aliases share it: too much may stay, too little cannot.
void Tape::leave_out_unread() {
  std::set<int32_t> read;
  std::vector<int32_t> order;
  for (auto i = static_cast<int32_t>(operations_.size()); i-- > 0;) {
    const Operation& o = operations_[static_cast<size_t>(i)];
    const bool stays =
        o.writes.empty() || std::any_of(o.writes.begin(), o.writes.end(), [&](Value v) {
          if (!v) return false;
          const Info& owner = values_[static_cast<size_t>(storage_of(v))];
          return owner.external || owner.kept || read.contains(storage_of(v));
        });
    if (!stays) continue;
    order.push_back(i);
    for (Value v : o.reads) {
      if (v) read.insert(storage_of(v));
    }
  }
  std::reverse(order.begin(), order.end());
  reorder(order);
}

// Operation order[i] becomes operation i; those that `order` does not name go.
void Tape::reorder(const std::vector<int32_t>& order) {
  std::vector<Operation> operations;
  std::vector<int32_t> place(operations_.size(), -1);
  for (int32_t from : order) {
    place[static_cast<size_t>(from)] = static_cast<int32_t>(operations.size());
    operations.push_back(std::move(operations_[static_cast<size_t>(from)]));
  }
  operations_ = std::move(operations);
  for (int32_t& last : last_contribution_) {
    if (last >= 0) last = place[static_cast<size_t>(last)];
  }
}

void Tape::defer_parameter_gradients() {
  const auto elements = [this](const Operation& o) {
    int64_t n = 0;
    for (Value v : o.writes) {
      if (v && info(v).external) n += info(v).rows * info(v).cols;
    }
    return n;
  };
  // A quarter: an element of a weight gradient takes 2 rows flops, one of the last gradient 4 bytes
  // on the wire twice. At 600 TFLOP/s and 230 GB/s, 10,000 rows make these times equal.
  int64_t wanted = 0;
  for (const Operation& o : operations_) {
    if (!o.deferrable && elements(o) > 0) wanted = elements(o) / 4;
  }
  // From the end: an operation may pass those behind it that stay when neither writes what the
  // other touches. Those that move keep their order.
  std::set<int32_t> read, written;  // storage that the operations that stay touch
  const auto meets = [this](const std::vector<Value>& values, const std::set<int32_t>& storage) {
    return std::any_of(values.begin(), values.end(),
                       [&](Value v) { return v && storage.contains(storage_of(v)); });
  };
  std::vector<int32_t> order, moved;  // both backwards
  for (auto i = static_cast<int32_t>(operations_.size()); i-- > 0;) {
    const Operation& o = operations_[static_cast<size_t>(i)];
    if (o.deferrable && wanted > 0 && !meets(o.reads, written) && !meets(o.writes, written) &&
        !meets(o.writes, read)) {
      wanted -= elements(o);
      moved.push_back(i);
      continue;
    }
    order.push_back(i);
    for (Value v : o.reads) {
      if (v) read.insert(storage_of(v));
    }
    for (Value v : o.writes) {
      if (v) written.insert(storage_of(v));
    }
  }
  order.insert(order.begin(), moved.begin(), moved.end());
  std::reverse(order.begin(), order.end());
  reorder(order);
}

std::vector<Tape::FinishedGradient> Tape::finished_gradients() const {
  std::vector<FinishedGradient> finished;
  for (size_t p = 0; p < last_contribution_.size(); ++p) {
    if (last_contribution_[p] >= 0)
      finished.push_back({static_cast<int32_t>(p), last_contribution_[p]});
  }
  std::sort(finished.begin(), finished.end(), [](const auto& a, const auto& b) {
    return a.operation != b.operation ? a.operation < b.operation : a.parameter < b.parameter;
  });
  return finished;
}

size_t Tape::plan() {
  planned_ = true;
  for (size_t i = 0; i < operations_.size(); ++i) {
    for (Value v : operations_[i].writes) touch(v, static_cast<int32_t>(i));
    for (Value v : operations_[i].reads) touch(v, static_cast<int32_t>(i));
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].kept) values_[i].last = INT32_MAX;
  }
  std::vector<ArenaRequest> requests;
  std::vector<size_t> owner;
  for (size_t i = 0; i < values_.size(); ++i) {
    const Info& v = values_[i];
    if (v.external || v.root >= 0 || v.first < 0) continue;
    requests.push_back({v.bytes(), v.first, v.last});
    owner.push_back(i);
  }
  const ArenaPlan plan = plan_arena(requests);
  for (size_t r = 0; r < owner.size(); ++r) values_[owner[r]].offset = plan.offsets[r];
  return plan.bytes;
}

void Tape::run(const Context& ctx, void* arena, bool accumulate,
               const std::function<void(int32_t)>& after) const {
  SAT_ASSERT(planned_);
  const Run r(ctx, *this, static_cast<char*>(arena), accumulate);
  for (size_t i = 0; i < operations_.size(); ++i) {
    operations_[i].run(r);
    if (after) after(static_cast<int32_t>(i));
  }
}

size_t Tape::unshared_bytes() const {
  size_t sum = 0;
  for (const Info& v : values_) sum += v.external || v.root >= 0 || v.first < 0 ? 0 : v.bytes();
  return sum;
}

}  // namespace saturate
