// SPDX-License-Identifier: Apache-2.0
#include "train/gathered_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "base/error.h"
#include "train/checkpoint_state.h"

namespace saturate::train {
namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20;

}  // namespace

std::vector<GatheredWeights::Chunk> GatheredWeights::own_chunks(const StateOfRanks& state,
                                                                const Together& ranks) const {
  const ParameterStore& store = state.store;
  const auto most = kChunkBytes / static_cast<int64_t>(size_of(store.wide_type()));
  const std::vector<Share> shares = shares_of_copies(store, state.layout, ranks);
  std::map<std::string_view, const ParameterSpec*> here;
  for (const ParameterSpec& p : store.specs()) here[p.name] = &p;
  std::vector<Chunk> chunks;
  for (size_t n = 0; n < all_.specs().size(); ++n) {
    const auto found = here.find(all_.specs()[n].name);
    if (found == here.end()) continue;
    const ParameterSpec& p = *found->second;
    const bool shipped = store.group_of(p).keeps(store.shipped(), store.purpose());
    for_held(store, p, shipped ? store.shipped() : StateArray::master, Held::owned,
             shares[static_cast<size_t>(p.group)], most,
             [&](char* memory, int64_t elements, std::span<const HeldRun> runs) {
               chunks.push_back({n, memory, elements, {runs.begin(), runs.end()}});
             });
  }
  return chunks;
}

GatheredWeights::GatheredWeights(const StateOfRanks& state, parallel::Communicator& ranks)
    : all_(state.all), ranks_(ranks) {
  const Together together(ranks);
  const std::vector<Chunk> mine = own_chunks(state, together);
  std::vector<uint64_t> packed;
  for (const Chunk& c : mine) {
    packed.insert(packed.end(), {c.number, static_cast<uint64_t>(c.elements), c.runs.size()});
    for (const HeldRun& r : c.runs)
      packed.insert(packed.end(), {static_cast<uint64_t>(r.at), static_cast<uint64_t>(r.whole),
                                   static_cast<uint64_t>(r.length)});
  }
  for (int root = 0; root < together.size(); ++root) {
    const std::vector<uint64_t> theirs = together.from(root, packed);
    std::vector<Chunk>& chunks = chunks_.emplace_back();
    for (auto at = theirs.begin(); at != theirs.end();) {
      const auto next = [&] { return static_cast<int64_t>(*at++); };
      Chunk& c = chunks.emplace_back();
      c.number = static_cast<size_t>(next());
      c.elements = next();
      c.runs.resize(static_cast<size_t>(next()));
      for (HeldRun& r : c.runs) {
        r.at = next();
        r.whole = next();
        r.length = next();
      }
    }
    if (root == together.rank()) chunks = mine;
  }
}

void GatheredWeights::gather(
    const Stream& stream,
    const std::function<void(size_t number, const void* values, size_t bytes)>& take) {
  const DType type = all_.wide_type();
  const size_t element = size_of(type);
  const bool first = ranks_.rank() == 0;
  const Context ctx{all_.device(), stream.native()};
  const Buffer moved(all_.device(), kChunkBytes);
  std::vector<char> host(first ? kChunkBytes : 0), whole;
  const auto scatter = [&](const Chunk& c, const void* memory) {
    copy_to_host(stream, host.data(), memory, static_cast<size_t>(c.elements) * element);
    stream.synchronize();
    for (const HeldRun& r : c.runs)
      std::memcpy(whole.data() + static_cast<size_t>(r.whole) * element,
                  host.data() + static_cast<size_t>(r.at) * element,
                  static_cast<size_t>(r.length) * element);
  };
  std::vector<size_t> done(chunks_.size());
  for (size_t n = 0; n < all_.specs().size(); ++n) {
    const SavedShape shape = saved_shape(all_.specs()[n]);
    if (first) whole.assign(static_cast<size_t>(shape.rows * shape.cols) * element, 0);
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const std::vector<Chunk>& chunks = chunks_[static_cast<size_t>(rank)];
      size_t& next = done[static_cast<size_t>(rank)];
      for (; next < chunks.size() && chunks[next].number == n; ++next) {
        const Chunk& c = chunks[next];
        if (rank == 0) {
          if (first) scatter(c, c.memory);
          continue;
        }
        if (!first && rank != ranks_.rank()) continue;
        parallel::Collective move{
            .kind = parallel::CollectiveKind::send_receive, .group = ranks_.world(), .dtype = type};
        move.send_counts.resize(static_cast<size_t>(ranks_.size()));
        move.receive_counts.resize(static_cast<size_t>(ranks_.size()));
        (first ? move.receive_counts[static_cast<size_t>(rank)] : move.send_counts[0]) = c.elements;
        // Collectives take memory of the device alone, and the state may lie in the host's.
        if (!first)
          copy_on_device(stream, moved.data(), c.memory, static_cast<size_t>(c.elements) * element);
        ranks_.wait(
            ranks_.start(move, first ? nullptr : moved.data(), first ? moved.data() : nullptr, ctx),
            ctx);
        if (first) scatter(c, moved.data());
      }
    }
    if (first) take(n, whole.data(), whole.size());
  }
  stream.synchronize();
}

}  // namespace saturate::train
