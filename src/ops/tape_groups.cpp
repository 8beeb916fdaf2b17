// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

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

struct Member {
  Tape::Operation product;
  std::optional<Tape::Operation> row_sum;
};

// The operations that one operation runs: in one launch on a GPU.
Tape::Operation joined(const std::vector<Member>& members) {
  Tape::Operation group = members.back().product;
  group.name = "linear_weight_gradient_group";
  group.reads.clear();
  group.writes.clear();
  group.traits.flops = 0;
  group.member = {};
  struct Part {
    std::shared_ptr<const Tape::GroupMember> product;
    std::shared_ptr<const Tape::RowSum> row_sum;
  };
  std::vector<Part> parts;
  std::vector<Tape::RunFn> runs;
  const auto take = [&](const Tape::Operation& o) {
    group.reads.insert(group.reads.end(), o.reads.begin(), o.reads.end());
    group.writes.insert(group.writes.end(), o.writes.begin(), o.writes.end());
    group.traits.flops += o.traits.flops;
    runs.push_back(o.run);
  };
  for (const Member& m : members) {
    take(m.product);
    if (m.row_sum) take(*m.row_sum);
    parts.push_back({m.product.member, m.row_sum ? m.row_sum->row_sum : nullptr});
  }
  group.run = [parts, runs](const Run& r) {
    if (!r.ctx.device.is_cuda()) {
      for (const Tape::RunFn& run : runs) run(r);
      return;
    }
    std::vector<kernels::MatmulArgs> args;
    for (const Part& p : parts) {
      args.push_back(p.product->args(r));
      if (p.row_sum)
        std::tie(args.back().epilogue.column_sum, args.back().epilogue.add_to_column_sum) =
            p.row_sum->out(r);
    }
    kernels::matmul_group(r.ctx, args);
  };
  return group;
}

}  // namespace

void Tape::group_weight_gradients(int64_t places) {
  SAT_ASSERT(!planned_);
  if (places == 0) return;
  std::vector<Operation> operations;
  std::vector<Member> open;
  std::vector<int32_t> numbers;  // of the open ones
  std::vector<int32_t> place(operations_.size(), -1);
  std::set<int32_t> read, written;  // storage of the open ones
  int64_t units = 0;
  const auto close = [&] {
    if (open.empty()) return;
    if (open.size() > 1) {
      operations.push_back(joined(open));
    } else {
      if (open.front().row_sum) operations.push_back(std::move(*open.front().row_sum));
      operations.push_back(std::move(open.front().product));
    }
    for (const int32_t i : numbers)
      place[static_cast<size_t>(i)] = static_cast<int32_t>(operations.size()) - 1;
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
  const auto passes = [&](const Operation& o) {
    return o.segment == open.back().product.segment && !meets(o.writes, read) &&
           !meets(o.writes, written) && !meets(o.reads, written);
  };
  // Closures of operations that run again find their values by names of their own.
  const auto may_join = [&](const Operation& o) {
    return o.member && o.deferrable && !o.renames &&
           kernels::matmul_group_units(o.member->sizes) <= places &&
           o.member->sizes.m + o.member->sizes.n <= kMostColumns;
  };
  const auto take = [&](Operation& o, size_t number) {
    for (Value v : o.reads)
      if (v) read.insert(storage_of(v));
    for (Value v : o.writes)
      if (v) written.insert(storage_of(v));
    numbers.push_back(static_cast<int32_t>(number));
    return std::move(o);
  };
  for (size_t i = 0; i < operations_.size(); ++i) {
    Operation& o = operations_[i];
    // The sum of a gradient's rows comes right before the product that it may be made beside.
    const bool before = o.row_sum && !o.renames && i + 1 < operations_.size() &&
                        may_join(operations_[i + 1]) &&
                        operations_[i + 1].member->gradient == o.row_sum->of &&
                        operations_[i + 1].segment == o.segment;
    const Operation& product = operations_[before ? i + 1 : i];
    const bool joins = may_join(product);
    if (!open.empty() &&
        (!passes(o) || !passes(product) ||
         (joins && product.member->sizes.ab_type != open.back().product.member->sizes.ab_type)))
      close();
    if (!joins) {
      place[i] = static_cast<int32_t>(operations.size());
      operations.push_back(std::move(o));
      continue;
    }
    units += kernels::matmul_group_units(product.member->sizes);
    Member member;
    if (before) member.row_sum = take(o, i++);
    member.product = take(operations_[i], i);
    open.push_back(std::move(member));
    if (fullness(units, places) >= kFullEnough || std::ssize(open) == kernels::kMostInMatmulGroup)
      close();
  }
  close();
  operations_ = std::move(operations);
  for (int32_t& last : last_contribution_)
    if (last >= 0) last = place[static_cast<size_t>(last)];
}

}  // namespace saturate
