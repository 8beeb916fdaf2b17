// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/wgmma/matmul_group.h"
#include "ops/tape.h"

namespace saturate {
namespace {

// Nothing waits for weight gradients, so they run while the compute lane would wait for a transfer:
// they are passed over until an operation reads what another lane brings, and a product of them
// goes in front of each such operation. As a rule each transfer of a tensor-parallel layer has one
// product, so few are passed over at a time. Contributions to one gradient keep their order, as do
// operations one of which writes what the other touches.
std::vector<int32_t> weight_gradients_beside_transfers(const Tape& t) {
  std::vector<int32_t> order, passed;
  std::set<int32_t> arriving;  // storage that other lanes write
  const auto operation = [&](int32_t i) -> const Tape::Operation& {
    return t.operation(static_cast<size_t>(i));
  };
  const auto meet = [&](const std::vector<Value>& a, const std::vector<Value>& b) {
    return std::any_of(a.begin(), a.end(), [&](Value x) {
      return x && std::any_of(b.begin(), b.end(),
                              [&](Value y) { return y && t.storage_of(x) == t.storage_of(y); });
    });
  };
  const auto awaits = [&](const Tape::Operation& o) {
    return std::any_of(o.reads.begin(), o.reads.end(),
                       [&](Value v) { return v && arriving.contains(t.storage_of(v)); });
  };
  const auto emit = [&](size_t count) {
    const auto end = passed.begin() + static_cast<std::ptrdiff_t>(count);
    order.insert(order.end(), passed.begin(), end);
    passed.erase(passed.begin(), end);
  };
  for (int32_t i = 0; i < static_cast<int32_t>(t.operations()); ++i) {
    const Tape::Operation& o = operation(i);
    if (i > 0 && o.segment != operation(i - 1).segment) emit(passed.size()), arriving.clear();
    if (o.deferrable && o.traits.lane == 0) {
      passed.push_back(i);
      continue;
    }
    if (o.traits.lane == 0 && awaits(o)) {
      size_t count = 0;
      while (count < passed.size() && operation(passed[count]).traits.flops == 0) ++count;
      // One that needs the transfer itself stays for the next.
      if (count < passed.size() && !awaits(operation(passed[count]))) emit(count + 1);
      arriving.clear();
    }
    size_t before = passed.size();  // operations that this one may not pass
    while (before > 0) {
      const Tape::Operation& p = operation(passed[before - 1]);
      if (meet(o.writes, p.writes) || meet(o.writes, p.reads) || meet(o.reads, p.writes)) break;
      --before;
    }
    emit(before);
    order.push_back(i);
    if (o.traits.lane == 0 || o.paced) continue;  // gathers come early enough by themselves
    for (Value v : o.writes) {
      if (v) arriving.insert(t.storage_of(v));
    }
  }
  emit(passed.size());
  return order;
}

}  // namespace

Value Tape::gradient(Value v) const { return v ? gradients_[static_cast<size_t>(v.id)] : Value{}; }

void Tape::set_gradient(Value v, Value g) { gradients_[static_cast<size_t>(v.id)] = g; }

void Tape::sums_to_bias(Value v, Value bias) {
  if (training() && bias) biases_[v.id] = bias;
}

Value Tape::bias_of(Value v) const {
  const auto known = biases_.find(v.id);
  return known == biases_.end() || parameters_.sharing().zero >= 2 ? Value{} : known->second;
}

void Tape::set_summed_gradient(Value v, Value g) {
  set_gradient(v, g);
  summed_[v.id] = g;
}

bool Tape::bias_is_summed(Value v) const {
  const auto known = summed_.find(v.id);
  if (known == summed_.end()) return false;
  SAT_ASSERT(known->second == gradient(v));
  return true;
}

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
  const bool in_unit = parameters_.sharing().zero >= 2;  // of this tape and micro-batch alone
  *first = !g && (in_unit || !added_to_.contains(p));
  if (!g) {
    if (s.frozen) {
      g = make("frozen_gradient", wide_type(), s.rows, s.cols);
    } else if (in_unit) {
      g = unit_gradient(p);
    } else {
      g = external("parameter_gradient", wide_type(), s.rows, s.cols, parameters_.gradient({p}));
    }
  }
  if (!s.frozen)
    last_contribution_[static_cast<size_t>(p)] = static_cast<int32_t>(operations_.size());
  return g;
}

void Tape::backward(bool split) {
  SAT_ASSERT(training());
  segment("backward");
  auto region = regions_.rbegin();
  Value pace;  // the gradient that the region behind this one began with
  for (auto i = static_cast<int32_t>(operations_.size()); i-- > 0;) {
    if (region != regions_.rend() && i + 1 == region->end) {
      const Value latest =
          operations_.back().writes.empty() ? Value{} : operations_.back().writes[0];
      region_ = static_cast<int32_t>(std::distance(region, regions_.rend())) - 1;
      run_again(*region, pace);
      pace = latest;
    }
    const Operation& o = operations_[static_cast<size_t>(i)];
    const bool reached = o.backward && std::any_of(o.writes.begin(), o.writes.end(),
                                                   [&](Value v) { return v && gradient(v); });
    if (reached) {
      const BackwardFn backward = std::move(operations_[static_cast<size_t>(i)].backward);
      backward(*this);  // recording moves operations_
    }
    if (region != regions_.rend() && i == region->begin) {
      renames_ = nullptr;
      region_ = -1;
      ++region;
    }
  }
  const auto& specs = parameters_.specs();
  if (recomputes() ||
      std::any_of(specs.begin(), specs.end(), [](const auto& s) { return s.frozen; }))
    leave_out_unread();
  defer_parameter_gradients(split);
  const bool alone = std::ranges::none_of(operations_, [this](const Operation& o) {
    return o.traits.lane != 0 || o.traits.kind != OperationKind::compute ||
           (o.deferrable &&
            std::ranges::any_of(o.writes, [this](Value v) { return v && is_summed(v); }));
  });
  if (!split && alone && unit_gradients_.empty()) {
    group_weight_gradients(kernels::matmul_group_places({.device = device()}));
    if (device().is_cuda()) fold_at_the_end();
  }
  if (!unit_gradients_.empty()) record_reductions();
}

bool Tape::recomputes() const {
  return std::any_of(operations_.begin(), operations_.end(),
                     [](const Operation& o) { return o.recompute != Recompute::none; });
}

// Records the region's operations that run again, with their results renamed. Closures keep the
// names they were recorded with, here and in the gradients recorded next, and find the new storage
// through the table. What nothing reads goes in leave_out_unread(). Operations of other lanes wait
// for `pace`: gathers run ahead by one region, and no more than two regions' results are there at
// once.
void Tape::run_again(OperationRange region, Value pace) {
  for (int32_t i = region.begin; i < region.end; ++i) {
    if (operations_[static_cast<size_t>(i)].recompute == Recompute::none) continue;
    Operation again = operations_[static_cast<size_t>(i)];
    if (!renames_) renames_ = std::make_shared<Renames>();
    if (again.paced) again.reads.clear();
    if (again.recompute == Recompute::from_kept) {
      const Shortcut& from = *again.shortcut;
      again.reads = from.reads;
      again.reads.push_back(from.kept);
      again.run = from.run;
      std::erase(again.writes, from.kept);
    }
    for (Value& v : again.reads) v = renamed(v);
    for (Value& v : again.writes) {
      if (!v || info(v).external) continue;
      Info copy = info(v);
      copy.kept = false;
      if (copy.root >= 0) {
        const Value root = renamed({copy.root});
        SAT_ASSERT(root.id != copy.root);  // else it would overwrite a value from outside
        copy.root = root.id;
      }
      const Value name = v;
      v = add(copy);
      renames_->emplace(name.id, v);
    }
    if (again.traits.lane != 0) again.reads.push_back(pace);
    again.backward = {};
    again.segment = static_cast<int32_t>(segments_.size()) - 1;
    again.renames = renames_;
    operations_.push_back(std::move(again));
  }
}

// Backwards: an operation stays when somebody outside or an operation that stays reads one of its
// results. By storage, as aliases share it: too much may stay, too little cannot.
void Tape::leave_out_unread() {
  std::set<int32_t> read;
  for (const UnitGradient& u : unit_gradients_) read.insert(u.whole.id);
  std::vector<int32_t> order;
  for (auto i = static_cast<int32_t>(operations_.size()); i-- > 0;) {
    const Operation& o = operations_[static_cast<size_t>(i)];
    // What other ranks take part in stays, whoever reads it here.
    const bool stays = o.traits.kind != OperationKind::compute || o.writes.empty() ||
                       std::any_of(o.writes.begin(), o.writes.end(), [&](Value v) {
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

bool Tape::is_summed(Value gradient) const {
  const auto& specs = parameters_.specs();
  for (size_t p = 0; p < specs.size(); ++p) {
    const Value g = parameter_gradients_[p];
    if (!g || storage_of(g) != storage_of(gradient)) continue;
    const ParameterGroup::Sharing& sharing = parameters_.group_of(specs[p]).sharing();
    if (sharing.ranks.size() > 1 || sharing.replicas.size() > 1 || !specs[p].holders.empty())
      return true;
  }
  return false;
}

void Tape::defer_parameter_gradients(bool all) {
  const auto is_gradient = [this](Value v) {
    return info(v).external || std::ranges::any_of(unit_gradients_, [&](const UnitGradient& u) {
             return u.whole.id == info(v).root;
           });
  };
  const auto elements = [&](const Operation& o) {
    int64_t n = 0;
    for (Value v : o.writes) {
      if (v && is_gradient(v)) n += info(v).rows * info(v).cols;
    }
    return n;
  };
  // A quarter: an element of a weight gradient takes 2 rows flops, one of the last gradient 4 bytes
  // on the wire twice. At 600 TFLOP/s and 230 GB/s, 10,000 rows make these times equal. Where no
  // rank has a share in it, these products have transfers of their own layers to hide instead.
  const bool transfers =
      std::any_of(operations_.begin(), operations_.end(),
                  [](const Operation& o) { return o.traits.lane != 0 && !o.paced; });
  int64_t wanted = 0;
  for (const Operation& o : operations_) {
    if (o.deferrable || elements(o) == 0) continue;
    const bool hides = !transfers || std::any_of(o.writes.begin(), o.writes.end(),
                                                 [this](Value v) { return v && is_summed(v); });
    wanted = hides ? elements(o) / 4 : 0;
  }
  if (all) wanted = std::numeric_limits<int64_t>::max();
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
  if (all) segment("weight_gradients");
  for (const int32_t i : moved) {
    if (all)
      operations_[static_cast<size_t>(i)].segment = static_cast<int32_t>(segments_.size()) - 1;
  }
  order.insert(order.begin(), moved.begin(), moved.end());
  std::reverse(order.begin(), order.end());
  reorder(order);
  if (transfers) reorder(weight_gradients_beside_transfers(*this));
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

}  // namespace saturate
