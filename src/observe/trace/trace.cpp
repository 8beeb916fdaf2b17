// SPDX-License-Identifier: Apache-2.0
#include "observe/trace/trace.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "base/error.h"

namespace saturate::observe {
namespace {

// rank[id] of each name or key in the order of their values.
template <class Table>
std::vector<uint32_t> ranks(const Table& table) {
  std::vector<uint32_t> order(table.size()), rank(table.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return table[a] < table[b]; });
  for (uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  return rank;
}

constexpr int64_t kLongestNs = 1'000'000'000'000'000;
constexpr int64_t kMostSpreadNs = 1'000'000'000'000'000'000;
constexpr int64_t kMostSumNs = 100'000'000'000'000'000;

struct Extent {
  int64_t first = INT64_MAX, last = INT64_MIN, sum = 0;

  template <class Record>
  void add(const std::vector<Record>& records) {
    for (const Record& r : records) {
      first = std::min(first, r.start_ns);
      last = std::max(last, r.end_ns);
      sum = std::min(sum + (r.end_ns - r.start_ns), 2 * kMostSumNs);
    }
  }
};

template <class Record, class Less>
void sort_records(std::vector<Record>& records, const Less& less) {
  // Captures are nearly always in order already, or a few runs that are, as of several threads.
  constexpr size_t kMostRuns = 64;
  std::vector<size_t> ends;
  for (size_t at = 0; at < records.size() && ends.size() <= kMostRuns;) {
    const auto from = records.begin() + static_cast<std::ptrdiff_t>(at);
    at = static_cast<size_t>(std::is_sorted_until(from, records.end(), less) - records.begin());
    ends.push_back(at);
  }
  if (ends.size() > kMostRuns) {
    std::sort(records.begin(), records.end(), less);
    return;
  }
  const auto place = [&](size_t i) { return records.begin() + static_cast<std::ptrdiff_t>(i); };
  while (ends.size() > 1) {
    std::vector<size_t> joined;
    for (size_t i = 0; i < ends.size(); i += 2) {
      const size_t from = i == 0 ? 0 : ends[i - 1], last = std::min(i + 1, ends.size() - 1);
      if (last > i) std::inplace_merge(place(from), place(ends[i]), place(ends[last]), less);
      joined.push_back(ends[last]);
    }
    ends = std::move(joined);
  }
}

}  // namespace

NameTable& NameTable::operator=(const NameTable& other) {
  texts_ = other.texts_;
  ids_.clear();
  for (uint32_t i = 0; i < texts_.size(); ++i) ids_.emplace(texts_[i], i);
  return *this;
}

uint32_t NameTable::add(std::string_view text) {
  if (const auto at = ids_.find(text); at != ids_.end()) return at->second;
  const auto id = static_cast<uint32_t>(texts_.size());
  ids_.emplace(texts_.emplace_back(text), id);
  return id;
}

void CopyRates::take(const CopyRates& other) {
  if (!known()) device = other.device, bus = other.bus;
  pinned_in = std::max(pinned_in, other.pinned_in);
  pinned_out = std::max(pinned_out, other.pinned_out);
  pageable_in = std::max(pageable_in, other.pageable_in);
  pageable_out = std::max(pageable_out, other.pageable_out);
}

void Trace::sort() {
  constexpr int64_t kFarthestNs = 4'000'000'000'000'000'000;
  const auto backwards = [](const auto& r) {
    return r.start_ns < -kFarthestNs || r.start_ns > kFarthestNs || r.end_ns < r.start_ns ||
           r.end_ns - r.start_ns > kLongestNs;
  };
  malformed +=
      static_cast<int64_t>(std::erase_if(ops, backwards) + std::erase_if(calls, backwards) +
                           std::erase_if(spans, backwards));
  Extent extent;
  extent.add(ops);
  extent.add(calls);
  extent.add(spans);
  if (extent.last > INT64_MIN &&
      (extent.last - extent.first > kMostSpreadNs || extent.sum > kMostSumNs)) {
    throw Error(
        Errc::invalid_argument, "doctor",
        "the times of the capture cannot be true: its records spread over more than 31 years or "
        "add up to more than 3; record it again");
  }
  malformed += static_cast<int64_t>(std::erase_if(samples, backwards));
  std::erase_if(memory, [](const MemorySample& m) {
    return m.time_ns < -kFarthestNs || m.time_ns > kFarthestNs;
  });
  sort_records(memory, std::less<>());
  sort_records(work, std::less<>());
  sort_records(host_uses, std::less<>());
  const std::vector<uint32_t> name = ranks(names), stream = ranks(streams), thread = ranks(threads);
  sort_records(ops, [&](const DeviceOp& a, const DeviceOp& b) {
    if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
    return std::tuple(a.end_ns, stream[a.stream], a.correlation, name[a.name], a.size, a.kind,
                      a.copy, a.memory, a.block_threads, a.operation) <
           std::tuple(b.end_ns, stream[b.stream], b.correlation, name[b.name], b.size, b.kind,
                      b.copy, b.memory, b.block_threads, b.operation);
  });
  sort_records(samples, [&](const HostSample& a, const HostSample& b) {
    return std::tuple(thread[a.thread], a.start_ns, a.end_ns) <
           std::tuple(thread[b.thread], b.start_ns, b.end_ns);
  });
  sort_records(collectives, [&](const CollectiveNote& a, const CollectiveNote& b) {
    return std::tuple(a.correlation, name[a.group], name[a.what], a.bytes) <
           std::tuple(b.correlation, name[b.group], name[b.what], b.bytes);
  });
  // Outer calls and spans before the inner ones that start with them.
  sort_records(calls, [&](const HostCall& a, const HostCall& b) {
    if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
    return std::tuple(-a.end_ns, thread[a.thread], a.correlation, name[a.name]) <
           std::tuple(-b.end_ns, thread[b.thread], b.correlation, name[b.name]);
  });
  sort_records(spans, [&](const HostSpan& a, const HostSpan& b) {
    if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
    return std::tuple(-a.end_ns, thread[a.thread], a.kind, name[a.name]) <
           std::tuple(-b.end_ns, thread[b.thread], b.kind, name[b.name]);
  });
}

}  // namespace saturate::observe
