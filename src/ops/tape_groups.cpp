// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "kernels/gemm/wgmma/matmul_group.h"
#include "ops/tape.h"

namespace saturate {
namespace {

// A group waits until its last round is this full.
constexpr double kFullEnough = 0.95;
// Rows of operands that wait with it, in elements: logits are wider, and are not to live longer.
constexpr int64_t kMostColumns = 8192;

// How full the rounds of so many units are.
double fullness(int64_t units, int64_t places) {
  return static_cast<double>(units) / static_cast<double>((units + places - 1) / places * places);
}

// The operations that one operation runs: in one launch on a GPU.
Tape::Operation joined(const std::vector<Tape::Operation>& members) {
  Tape::Operation group = members.back();
  group.name = "linear_weight_gradient_group";
  group.reads.clear();
  group.writes.clear();
  group.traits.flops = 0;
  group.member = {};
  std::vector<std::shared_ptr<const Tape::GroupMember>> products;
  std::vector<Tape::RunFn> runs;
  for (const Tape::Operation& o : members) {
    group.reads.insert(group.reads.end(), o.reads.begin(), o.reads.end());
    group.writes.insert(group.writes.end(), o.writes.begin(), o.writes.end());
    group.traits.flops += o.traits.flops;
    products.push_back(o.member);
    runs.push_back(o.run);
  }
  group.run = [products, runs](const Run& r) {
    if (!r.ctx.device.is_cuda()) {
      for (const Tape::RunFn& run : runs) run(r);
      return;
    }
    std::vector<kernels::MatmulArgs> args;
    for (const auto& p : products) args.push_back(p->args(r));
    kernels::matmul_group(r.ctx, args);
  };
  return group;
}

}  // namespace

void Tape::group_weight_gradients(int64_t places) {
  SAT_ASSERT(!planned_);
  if (places == 0) return;
  std::vector<Operation> operations, open;
  std::vector<int32_t> numbers;  // of the open ones
  std::vector<int32_t> place(operations_.size(), -1);
  std::set<int32_t> read, written;  // storage of the open ones
  int64_t units = 0;
  const auto close = [&] {
    if (open.empty()) return;
    for (const int32_t i : numbers)
      place[static_cast<size_t>(i)] = static_cast<int32_t>(operations.size());
    operations.push_back(open.size() == 1 ? std::move(open.front()) : joined(open));
    open.clear();
    numbers.clear();
    read.clear();
    written.clear();
    units = 0;
  };
  const auto meets = [this](const std::vector<Value>& values, const std::set<int32_t>& storage) {
    return std::ranges::any_of(values,
                               [&](Value v) { return v && storage.contains(storage_of(v)); });
  };
  for (size_t i = 0; i < operations_.size(); ++i) {
    Operation& o = operations_[i];
    // Closures of operations that run again find their values by names of their own.
    const bool joins = o.member && o.deferrable && !o.renames &&
                       kernels::matmul_group_units(o.member->sizes) <= places &&
                       o.member->sizes.m + o.member->sizes.n <= kMostColumns;
    if (!open.empty() && (o.segment != open.back().segment || meets(o.writes, read) ||
                          meets(o.writes, written) || meets(o.reads, written) ||
                          (joins && o.member->sizes.ab_type != open.back().member->sizes.ab_type)))
      close();
    if (!joins) {
      place[i] = static_cast<int32_t>(operations.size());
      operations.push_back(std::move(o));
      continue;
    }
    for (Value v : o.reads)
      if (v) read.insert(storage_of(v));
    for (Value v : o.writes)
      if (v) written.insert(storage_of(v));
    units += kernels::matmul_group_units(o.member->sizes);
    numbers.push_back(static_cast<int32_t>(i));
    open.push_back(std::move(o));
    if (fullness(units, places) >= kFullEnough || std::ssize(open) == kernels::kMostInMatmulGroup)
      close();
  }
  close();
  operations_ = std::move(operations);
  for (int32_t& last : last_contribution_)
    if (last >= 0) last = place[static_cast<size_t>(last)];
}

}  // namespace saturate
