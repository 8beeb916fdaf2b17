// SPDX-License-Identifier: Apache-2.0
// What runs of neighbouring kernels are parts of: an attention that is written out, the same formula
// for several tensors.
#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "observe/analyse/names.h"
#include "observe/analyse/replay.h"

namespace saturate::observe {

// Two products with a softmax between them, and nothing else but what memory bounds (scale, mask, dropout,
// another order, a copy): an attention that writes its weights and reads them again, as one kernel would
// not. Backward it is the same, with the softmax's gradient, and each of the products is one of two: the
// gradients of both factors, of which the other comes directly before or behind.
void Replay::find_written_attention() {
  constexpr size_t kMost = 12;  // operations between the products
  struct Stream {
    uint32_t product = kNone, before = kNone;  // the last product, and one directly before it
    std::vector<uint32_t> between;
    bool softmax = false, backward = false;
    bool pairs =
        false;  // the last product is an attention's, and the next one may be its other half
  };
  std::map<uint32_t, Stream> streams;
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    const ReplayOp& op = ops_[i];
    Stream& s = streams[op.stream];
    const bool copy = op.leaf == Leaf::copy_device;
    if (((op.memory_kernel && !op.beside_attention) || copy) && s.between.size() < kMost) {
      s.between.push_back(i);
      s.softmax = s.softmax || op.softmax;
      s.backward = s.backward || (op.softmax && op.backward);
      continue;
    }
    if (op.blocks == 0 && !op.graph) continue;
    Stream next;
    if (op.product && s.softmax && s.product != kNone) {
      for (const uint32_t k : s.between) ops_[k].of_weights = true;
      ops_[s.product].of_attention = ops_[i].of_attention = true;
      if (s.backward && s.before != kNone) ops_[s.before].of_attention = true;
      next.pairs = s.backward;
    } else if (op.product && s.pairs && s.between.empty()) {
      ops_[i].of_attention = true;
    }
    if (op.product) {
      next.product = i;
      next.before = s.between.empty() ? s.product : kNone;
    }
    s = std::move(next);
  }
}

// A formula that is reckoned for several tensors, one after the other, is a run of kernels that begins
// anew with each: they share no data, so that one pass over memory cannot do for all. So is one that is
// reckoned again with what it gave, which a run does not show.
void Replay::find_repeats() {
  const auto same = [&](uint32_t a, uint32_t b) {
    return ops_[a].name == ops_[b].name && ops_[a].blocks == ops_[b].blocks;
  };
  // The smallest part that the run is repeats of, by the borders of its beginnings (Knuth, Morris and
  // Pratt); the last one may be cut off.
  const auto mark = [&](const std::vector<uint32_t>& run) {
    std::vector<size_t> border(run.size() + 1, 0);
    for (size_t i = 1, k = 0; i < run.size(); ++i) {
      while (k > 0 && !same(run[i], run[k])) k = border[k];
      k += same(run[i], run[k]) ? 1 : 0;
      border[i + 1] = k;
    }
    const size_t part = run.size() - border[run.size()];
    if (part < 2 || 2 * part > run.size()) return;
    for (size_t i = part; i < run.size(); i += part) ops_[run[i]].repeats = true;
  };
  std::map<uint32_t, std::vector<uint32_t>> runs;  // by stream
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    std::vector<uint32_t>& run = runs[ops_[i].stream];
    if (ops_[i].pointwise) {
      run.push_back(i);
      continue;
    }
    if (ops_[i].blocks == 0 && !ops_[i].graph) continue;
    mark(run);
    run.clear();
  }
  for (const auto& [stream, run] : runs) mark(run);
}

// Weights of a recurrent layer that do not lie in one block are copied into one in every call, several
// copies in a row after a fill, for cuDNN wants them so: where its kernels follow, a few kernels later, on
// whichever streams it takes.
void Replay::find_scattered_weights(const Trace& trace) {
  constexpr size_t kLeast = 4, kKernelsBefore = 8;
  constexpr int64_t kLarge = 1 << 20;
  uint32_t last = kNone;             // kernel before the copies
  std::vector<uint32_t> run, found;  // copies in a row; of the last long row, with its fill
  int64_t bytes = 0;
  size_t kernels = 0;  // since then
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    const ReplayOp& op = ops_[i];
    if (op.leaf == Leaf::copy_device || op.moves_within) {
      run.push_back(i);
      bytes += op.bytes;
      continue;
    }
    if (op.blocks == 0 && !op.graph) continue;
    if (run.size() >= kLeast && bytes >= kLarge) {
      found = std::move(run);
      if (last != kNone && is_fill(trace.names[ops_[last].name])) found.push_back(last);
      kernels = 0;
    }
    run.clear();
    bytes = 0;
    last = i;
    if (found.empty()) continue;
    if (is_recurrent(trace.names[op.name])) {
      for (const uint32_t k : found) ops_[k].of_update = ops_[k].of_scattered = true;
      found.clear();
    } else if (++kernels > kKernelsBefore) {
      found.clear();
    }
  }
}

// The same few short operations again and again: what is computed for one element, image or row after
// the other, and could be for all at once. Layers have more kernels and are fewer. Where nothing else
// is done, these are the steps.
void Replay::find_loops() {
  constexpr size_t kLongest = 8, kTimes = 16;  // operations that repeat, and how often at least
  constexpr int64_t kShortNs = 20'000;
  const auto same = [&](size_t a, size_t b) {
    return ops_[a].name == ops_[b].name && ops_[a].leaf == ops_[b].leaf &&
           std::max(ops_[a].duration_ns, ops_[b].duration_ns) < kShortNs;
  };
  // Steps that are longer than such a part begin anew.
  std::vector<bool> begins(ops_.size() + 1, false);
  if (marks_.size() > 1 && ops_.size() > kTimes * marks_.size())
    for (const uint32_t mark : marks_) begins[mark] = true;
  size_t marked = 0;
  for (size_t part = 1; part <= kLongest; ++part) {
    size_t run = 0;
    for (size_t i = part; i <= ops_.size(); ++i) {
      if (i < ops_.size() && !begins[i] && same(i, i - part)) {
        ++run;
        continue;
      }
      if (run + part >= kTimes * part)
        for (size_t k = i - run; k < i; ++k) {
          marked += ops_[k].loops ? 0 : 1;
          ops_[k].loops = true;
        }
      run = 0;
    }
  }
  if (100 * marked < 99 * ops_.size()) return;
  for (ReplayOp& op : ops_) op.loops = false;
}

namespace {

// Parts of a step that repeat: how many, where the second begins and where the last ends.
struct Parts {
  size_t count = 1, second = 0, end = 0;
};

// The share of two stretches of symbols that both have, in whatever order.
double alike(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  std::map<uint32_t, int64_t> left;
  for (const uint32_t x : a) ++left[x];
  int64_t common = 0;
  for (const uint32_t x : b) common += left[x]-- > 0 ? 1 : 0;
  return static_cast<double>(common) / static_cast<double>(std::max(a.size(), b.size()));
}

// What comes once in each micro-batch cuts a step into as many stretches of one length that hold the same kernels; the
// first is shorter, since it sets gradients where the others add to them. Together they are most of the step.
Parts equal_parts(std::span<const uint32_t> step) {
  constexpr size_t kMost = 64, kShortest = 16;
  constexpr double kAlike = 0.8, kFirstAlike = 0.7;
  std::map<uint32_t, std::vector<size_t>> at;
  for (size_t i = 0; i < step.size(); ++i) at[step[i]].push_back(i);
  Parts found;
  std::vector<size_t> lengths;  // that were tried
  for (const auto& [symbol, places] : at) {
    const size_t n = places.size();
    if (n < 2 || n > kMost || n <= found.count) continue;
    const size_t length = places[n - 1] - places[n - 2];
    if (length < kShortest || 5 * n * length < 4 * step.size() || n * length > step.size() + length)
      continue;
    if (std::find(lengths.begin(), lengths.end(), length * kMost + n) != lengths.end()) continue;
    lengths.push_back(length * kMost + n);
    bool even = places.back() + length / 2 <= step.size() + places.front();
    for (size_t k = 1; even && k < n; ++k) {
      const size_t other = places[k] - places[k - 1], least = k == 1 ? 14 : 19;
      even = 20 * other >= least * length && 19 * other <= 20 * length;
    }
    for (size_t k = 1; even && k < n; ++k) {
      const size_t rest = std::min(k + 1 < n ? places[k + 1] : places[k] + length, step.size());
      const auto one = step.subspan(places[k - 1], places[k] - places[k - 1]);
      const auto next = step.subspan(places[k], rest - places[k]);
      even = alike(one.first(std::min(one.size(), next.size())), next) >=
             (k == 1 ? kFirstAlike : kAlike);
    }
    if (!even) continue;
    found = {n, places[1] - places[0], std::min(step.size(), places[n - 1] - places[0] + length)};
  }
  return found;
}

}  // namespace

// Gradients are added up over several micro-batches before the weights change: between two runs of the optimizer's
// kernels the same kernels come several times, each time with some of the backward pass. Products are alike
// whatever their shape, since micro-batches may have several lengths.
void Replay::find_micro_batches() {
  constexpr uint32_t kProduct = kNone - 1;
  constexpr size_t kFewest = 32;   // kernels
  std::map<size_t, size_t> found;  // steps by their number of micro-batches
  size_t steps = 0;
  std::vector<uint32_t> kernels, symbols;
  const auto finish = [&] {
    const Parts parts = equal_parts(symbols);
    ++steps;
    ++found[parts.count];
    if (parts.count < 2) return;
    const auto backward = [&](size_t from, size_t to) {
      size_t n = 0;
      for (size_t i = from; i < to; ++i) n += ops_[kernels[i]].backward ? 1 : 0;
      return n;
    };
    if (backward(0, parts.second) < 1 || backward(parts.second, parts.end) + 1 < parts.count) {
      --found[parts.count];
      return;
    }
    for (uint32_t i = kernels[parts.second]; i <= kernels[parts.end - 1]; ++i)
      ops_[i].later_part = true;
  };
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    const ReplayOp& op = ops_[i];
    if (op.optimizes && kernels.size() >= kFewest) {
      finish();
      kernels.clear();
      symbols.clear();
    }
    if (op.optimizes || (op.blocks == 0 && !op.graph)) continue;
    kernels.push_back(i);
    symbols.push_back(op.product ? kProduct : op.name);
  }
  // Steps that were recorded in part have fewer: the upper one in the middle of those that have several.
  size_t several = 0, seen = 0;
  for (const auto& [parts, count] : found) several += parts > 1 ? count : 0;
  if (2 * several > steps)
    for (const auto& [parts, count] : found) {
      if (parts > 1 && 2 * seen <= several) micro_batches_ = static_cast<int64_t>(parts);
      seen += parts > 1 ? count : 0;
    }
  if (micro_batches_ == 1) {
    for (ReplayOp& op : ops_) op.later_part = false;
    return;
  }
  size_t all = 0, later = 0;
  for (const ReplayOp& op : ops_) {
    if (op.optimizes || (op.blocks == 0 && !op.graph)) continue;
    ++all;
    later += op.later_part ? 1 : 0;
  }
  const auto n = static_cast<double>(micro_batches_);
  later_part_found_ =
      std::clamp(static_cast<double>(later) / static_cast<double>(all) / ((n - 1) / n), 0.1, 1.0);
}

// What a graph holds does not show, but what was computed or tried before it was made does: where the
// last products before the window were of float64, or of fp32 with or without tensor cores, its own may be.
void Replay::find_types_before(const Trace& trace, size_t first_op) {
  bool doubles = false, singles = false, tf32 = false;
  for (size_t i = first_op; i-- > 0;) {
    const DeviceOp& op = trace.ops[i];
    const std::string& name = trace.names[op.name];
    if (op.kind != OpKind::kernel || !says_type_of_products(name)) continue;
    doubles = is_double(name);
    if (!doubles && compares_results(name)) continue;  // of either way to multiply fp32
    singles = !doubles && classify_kernel(name) == KernelClass::matrix;
    tf32 = !doubles && !singles && is_tf32(name);
    break;
  }
  for (ReplayOp& op : ops_) {
    op.may_double = doubles && op.graph;
    op.may_single = singles && op.graph;
    op.may_tf32 = tf32 && op.graph;
  }
}

}  // namespace saturate::observe
