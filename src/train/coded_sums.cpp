// SPDX-License-Identifier: Apache-2.0
#include "train/coded_sums.h"

#include <algorithm>

#include "base/error.h"
#include "ops/parameters.h"

namespace saturate::train {
namespace {

using kernels::CodedBlock;
using parallel::Collective;
using parallel::CollectiveKind;

constexpr int64_t kWordsOfBlock = sizeof(CodedBlock) / 4;

char* element(void* array, int64_t i, DType type) {
  return static_cast<char*>(array) + static_cast<size_t>(i) * size_of(type);
}

OwnedRange owned_of(const ParameterGroup& group, size_t bucket) {
  if (group.sharing().zero > 0) return group.owned()[bucket];
  const parallel::FlatRange& b = group.buckets()[bucket];
  return {b.begin, b.end, b.begin};
}

}  // namespace

CodedParts::CodedParts(int64_t count, int ranks)
    : blocks((kernels::coded_blocks(count) + ranks - 1) / ranks), words(blocks * kWordsOfBlock) {}

CodedSums::CodedSums(parallel::Communicator& ranks, const Stream& compute, DType wide)
    : ranks_(ranks),
      compute_(compute),
      wide_(wide),
      stream_(compute.device()),
      begin_(compute.device()),
      end_(compute.device()) {}

CodedSums::Sum CodedSums::sum_of(const ParameterGroup& group, size_t bucket) const {
  const OwnedRange own = owned_of(group, bucket);
  const auto at = [&](StateArray a) {
    return element(group.array(a).data(), group.holds_ranges(a) ? own.local : own.begin, wide_);
  };
  return {.ranks = group.sharing().copies(),
          .values = at(StateArray::gradient),
          .residual = at(StateArray::residual),
          .count = own.end - own.begin};
}

void CodedSums::add(const Sum& sum) {
  SAT_ASSERT(sum.ranks.size() > 1 && sent_.data() == nullptr);
  sums_.push_back(sum);
}

size_t CodedSums::bytes(const ParameterStore& store) {
  int64_t sent = 0, received = 0;
  for (const ParameterGroup& group : store.groups()) {
    if (!group.sharing().coded || group.count() == 0) continue;
    const int n = group.sharing().copies().size();
    for (size_t b = 0; b < group.buckets().size(); ++b) {
      const OwnedRange own = owned_of(group, b);
      const int64_t words = CodedParts(own.end - own.begin, n).words;
      sent = std::max(sent, words * n);
      received = std::max(received, words * (n - 1));
    }
  }
  return static_cast<size_t>(sent + received) * 4;
}

void CodedSums::allocate() {
  int64_t sent = 0, received = 0;
  for (const Sum& s : sums_) {
    const int64_t n = s.ranks.size(), words = CodedParts(s.count, s.ranks.size()).words;
    sent = std::max(sent, words * n);
    received = std::max(received, words * (n - 1));
  }
  sent_ = Buffer(compute_.device(), static_cast<size_t>(sent) * 4);
  received_ = Buffer(compute_.device(), static_cast<size_t>(received) * 4);
}

std::vector<Collective> CodedSums::collectives(size_t i) const {
  const Sum& s = sums_[i];
  const int64_t words = CodedParts(s.count, s.ranks.size()).words;
  Collective exchange{
      .kind = CollectiveKind::all_to_all, .group = s.ranks, .dtype = DType::i32, .count = 0};
  exchange.send_counts.assign(s.ranks.ranks.size(), words);
  exchange.send_counts[static_cast<size_t>(position(s))] = 0;
  exchange.receive_counts = exchange.send_counts;
  Collective gather{
      .kind = CollectiveKind::all_gather, .group = s.ranks, .dtype = DType::i32, .count = words};
  return {std::move(exchange), std::move(gather)};
}

parallel::Ticket CodedSums::enqueue(size_t i, const Stream& from, parallel::Ticket before) {
  const Sum& s = sums_[i];
  const Context ctx{stream_.device(), stream_.native()};
  begin_.record(from);
  begin_.wait_on(stream_);
  ranks_.wait(before, ctx);
  const int n = s.ranks.size(), own = position(s);
  const int64_t part_blocks = CodedParts(s.count, n).blocks;
  const int64_t part = part_blocks * kernels::kCodedElements;  // elements
  auto* const sent = sent_.as<CodedBlock>();
  auto* const received = received_.as<CodedBlock>();
  // Parts [first, first + parts) of what this rank has, and what came for them.
  const auto compress = [&](int first, int parts, const CodedBlock* in, int64_t ins,
                            CodedBlock* to) {
    const int64_t begin = std::min(s.count, first * part),
                  end = std::min(s.count, (first + parts) * part);
    kernels::compress(ctx, {.x = element(s.values, begin, wide_),
                            .residual = element(s.residual, begin, wide_),
                            .inputs = in,
                            .input_count = ins,
                            .y = to,
                            .count = end - begin,
                            .blocks = parts * part_blocks,
                            .dtype = wide_});
  };
  const std::vector<Collective> steps = collectives(i);
  // What goes to others lies without a gap, in their order.
  compress(0, own, nullptr, 0, sent);
  compress(own + 1, n - own - 1, nullptr, 0, sent + own * part_blocks);
  ranks_.wait(ranks_.start(steps[0], sent, received, ctx), ctx);
  CodedBlock* const mine = sent + own * part_blocks;
  compress(own, 1, received, n - 1, mine);
  const parallel::Ticket all = ranks_.start(steps[1], mine, sent, ctx);
  ranks_.wait(all, ctx);
  kernels::decompress(ctx, {.x = sent, .y = s.values, .count = s.count, .dtype = wide_});
  return all;
}

void CodedSums::join() {
  end_.record(stream_);
  end_.wait_on(compute_);
}

Collective CodedSums::whole(const Sum& s) const {
  return {.group = s.ranks, .dtype = wide_, .count = s.count};
}

void CodedSums::add_up_residuals() {
  const Context ctx{compute_.device(), compute_.native()};
  parallel::Ticket last;
  for (const Sum& s : sums_) last = ranks_.start(whole(s), nullptr, s.residual, ctx);
  ranks_.wait(last, ctx);
}

void CodedSums::keep_own_parts() {
  for (const Sum& s : sums_) {
    const int64_t part = CodedParts(s.count, s.ranks.size()).blocks * kernels::kCodedElements;
    const int64_t begin = std::min(s.count, position(s) * part),
                  end = std::min(s.count, begin + part);
    const auto clear = [&](int64_t from, int64_t to) {
      fill_bytes(compute_, element(s.residual, from, wide_), 0,
                 static_cast<size_t>(to - from) * size_of(wide_));
    };
    clear(0, begin);
    clear(end, s.count);
  }
}

}  // namespace saturate::train
