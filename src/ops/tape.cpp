// SPDX-License-Identifier: Apache-2.0
#include "ops/tape.h"

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

void Tape::keep(Value v) { touch(v, INT32_MAX); }

void Tape::touch(Value v, int32_t operation) {
  if (!v) return;
  Info& i = at(v);
  Info& owner = i.root >= 0 ? values_[static_cast<size_t>(i.root)] : i;
  if (owner.first < 0) owner.first = operation;
  owner.last = std::max(owner.last, operation);
}

void Tape::record(const char* op, std::vector<Value> reads, std::vector<Value> writes, RunFn run,
                  BackwardFn backward) {
  SAT_ASSERT(!planned_);
  const auto index = static_cast<int32_t>(operations_.size());
  for (Value v : writes) touch(v, index);
  for (Value v : reads) touch(v, index);
  operations_.push_back(
      {op, std::move(writes), std::move(run), training() ? std::move(backward) : BackwardFn{}});
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
  Value& g = parameter_gradients_[static_cast<size_t>(p)];
  *first = !g;
  if (!g) {
    const ParameterSpec& s = parameters_.specs()[static_cast<size_t>(p)];
    g = external("parameter_gradient", wide_type(), s.rows, s.cols, parameters_.gradient({p}));
  }
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
