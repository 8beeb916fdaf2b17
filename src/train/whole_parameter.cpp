// SPDX-License-Identifier: Apache-2.0
#include "train/whole_parameter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace saturate::train {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 22;

struct Held {
  int64_t element;  // of the whole parameter
  double value;
};

// What this rank is responsible for: its own ranges of the group.
std::vector<Held> held(const Stream& stream, const ParameterStore& store, ParameterId id,
                       int64_t elements, StateArray array) {
  const ParameterSpec& p = store.spec(id);
  const ParameterGroup& group = store.group_of(p);
  const Block& memory = group.array(array);
  const DType type = group.type_of(array);
  const size_t bytes = size_of(type);
  // Of what the model reads from there may be all of it.
  const bool all = memory.bytes() >= static_cast<size_t>(group.count()) * bytes;
  std::vector<int64_t> element_of(static_cast<size_t>(p.size()));
  int64_t next = 0;
  if (p.whole.rows == 0) {
    for (int64_t& e : element_of) e = next++;
  } else {
    for (const parallel::ShardRun& run : p.whole.runs)
      for (int64_t i = 0; i < run.length; ++i)
        element_of[static_cast<size_t>(next++)] = run.global_offset + i;
  }
  std::vector<Held> out;
  for (const OwnedRange& r : group.owned()) {
    const int64_t begin = std::max(r.begin, p.offset), end = std::min(r.end, p.offset + p.size());
    if (begin >= end) continue;
    const int64_t at = all ? begin : r.local + begin - r.begin;
    std::vector<char> host(static_cast<size_t>(end - begin) * bytes);
    copy_to_host(stream, host.data(), memory.as<char>() + static_cast<size_t>(at) * bytes,
                 host.size());
    stream.synchronize();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t e = element_of[static_cast<size_t>(i - p.offset)];
      if (e >= elements) continue;
      const auto k = static_cast<size_t>(i - begin);
      const double value =
          type == DType::f64 ? reinterpret_cast<const double*>(host.data())[k]
                             : static_cast<double>(reinterpret_cast<const float*>(host.data())[k]);
      out.push_back({e, value});
    }
  }
  return out;
}

}  // namespace

WholeParameter whole_parameter(parallel::Communicator& ranks, const Stream& stream,
                               const ParameterStore& store, const std::string& name,
                               int64_t elements, StateArray array) {
  const ParameterId id = store.find(name);
  std::vector<Held> mine;
  if (id.index >= 0) mine = held(stream, store, id, elements, array);
  std::ranges::sort(mine, {}, &Held::element);
  WholeParameter whole;
  whole.values.resize(static_cast<size_t>(elements));
  const Context ctx{store.device(), stream.native(), nullptr, 0};
  const int64_t most = std::min(elements, kElementsAtOnce);
  const Buffer device(store.device(), static_cast<size_t>(2 * most) * sizeof(double));
  auto next = mine.begin();
  for (int64_t from = 0; from < elements; from += most) {
    const int64_t count = std::min(most, elements - from);
    // Sums, then how many ranks have added to them.
    std::vector<double> both(static_cast<size_t>(2 * count));
    const auto first = next;
    for (; next != mine.end() && next->element < from + count; ++next) {
      both[static_cast<size_t>(next->element - from)] += next->value;
      both[static_cast<size_t>(next->element - from + count)] += 1;
    }
    copy_to_device(stream, device.data(), both.data(), both.size() * sizeof(double));
    ranks.wait(ranks.start({.group = ranks.world(), .dtype = DType::f64, .count = 2 * count},
                           nullptr, device.data(), ctx),
               ctx);
    copy_to_host(stream, both.data(), device.data(), both.size() * sizeof(double));
    stream.synchronize();
    for (int64_t i = 0; i < count; ++i) {
      const double holders = both[static_cast<size_t>(i + count)];
      if (holders == 0) {
        throw Error(Errc::internal, "ranks",
                    fmt::format("no rank holds element {} of {}", from + i, name));
      }
      whole.values[static_cast<size_t>(from + i)] = both[static_cast<size_t>(i)] / holders;
    }
    for (auto h = first; h != next; ++h)
      whole.spread = std::max(whole.spread,
                              std::abs(h->value - whole.values[static_cast<size_t>(h->element)]));
  }
  whole.spread = ranks.all_reduce_max(whole.spread);
  return whole;
}

}  // namespace saturate::train
