// SPDX-License-Identifier: Apache-2.0
#include "model/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"

namespace saturate::model {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Chunks from both ends of the row, two for each rank, from rank 0 inwards: dynamic programming over
// what is left in the middle.
class VCut {
 public:
  VCut(const std::vector<double>& sums, int64_t ranks)
      : sums_(sums), items_(std::ssize(sums) - 1), ranks_(ranks) {}

  // Cuts where no rank has more than `most`; empty when there are none.
  std::vector<int64_t> within(double most) {
    most_ = most;
    // By rank and (first, last) item left: the least sum of squares of chunks, and what was taken.
    states_.assign(static_cast<size_t>(ranks_ + 1), {});
    states_[0][{0, items_}] = {0, 0, items_};
    for (int64_t r = 0; r < ranks_; ++r) {
      for (const auto& [left, state] : states_[static_cast<size_t>(r)]) extend(r, left, state.cost);
    }
    const State* best = nullptr;
    std::pair<int64_t, int64_t> at;
    for (const auto& [left, state] : states_.back()) {
      if (best == nullptr || state.cost < best->cost) best = &state, at = left;
    }
    if (best == nullptr) return {};
    std::vector<int64_t> down, up;
    for (int64_t r = ranks_; r > 0; --r) {
      const State& s = states_[static_cast<size_t>(r)].at(at);
      down.push_back(s.first);
      up.push_back(at.second);
      at = {s.first, s.last};
    }
    std::reverse(down.begin(), down.end());  // where the chunks of ranks 0, 1, ... begin
    down.insert(down.end(), up.begin(), up.end());
    down.push_back(items_);
    return down;
  }

 private:
  struct State {
    double cost;
    int64_t first, last;  // what was left before this rank
  };

  double cost(int64_t first, int64_t last) const {
    return sums_[static_cast<size_t>(last)] - sums_[static_cast<size_t>(first)];
  }
  void extend(int64_t rank, std::pair<int64_t, int64_t> left, double so_far) {
    const auto [first, last] = left;
    const int64_t others = ranks_ - 1 - rank;  // ranks further in, with two chunks each
    const bool innermost = others == 0;
    for (int64_t down = first + 1; down + 1 <= last && cost(first, down) <= most_; ++down) {
      for (int64_t up = last - 1; up >= down + 2 * others; --up) {
        const double a = cost(first, down), b = cost(up, last);
        if (a + b > most_) break;
        if (innermost && up != down) continue;
        const double squares = so_far + a * a + b * b;
        auto& next = states_[static_cast<size_t>(rank + 1)];
        const auto found = next.find({down, up});
        if (found == next.end() || squares < found->second.cost)
          next[{down, up}] = {squares, first, last};
      }
    }
  }

  const std::vector<double>& sums_;
  const int64_t items_, ranks_;
  double most_ = 0;
  std::vector<std::map<std::pair<int64_t, int64_t>, State>> states_;
};

// Chunks in a row, the dearest as cheap as possible, then the sum of squares as small as possible.
std::vector<int64_t> cut_row(const std::vector<double>& sums, int64_t chunks) {
  const int64_t items = std::ssize(sums) - 1;
  struct Best {
    double most = kNever, squares = kNever;
    int64_t from = 0;
  };
  std::vector<std::vector<Best>> best(static_cast<size_t>(chunks + 1),
                                      std::vector<Best>(sums.size()));
  best[0][0] = {0, 0, 0};
  for (int64_t c = 1; c <= chunks; ++c) {
    for (int64_t end = c; end <= items; ++end) {
      Best& b = best[static_cast<size_t>(c)][static_cast<size_t>(end)];
      for (int64_t from = c - 1; from < end; ++from) {
        const Best& before = best[static_cast<size_t>(c - 1)][static_cast<size_t>(from)];
        const double own = sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(from)];
        const Best offer{std::max(before.most, own), before.squares + own * own, from};
        if (std::pair(offer.most, offer.squares) < std::pair(b.most, b.squares)) b = offer;
      }
    }
  }
  std::vector<int64_t> cuts(static_cast<size_t>(chunks + 1));
  cuts.back() = items;
  for (int64_t c = chunks; c > 0; --c) {
    const auto end = static_cast<size_t>(cuts[static_cast<size_t>(c)]);
    cuts[static_cast<size_t>(c - 1)] = best[static_cast<size_t>(c)][end].from;
  }
  return cuts;
}

bool is_v(const std::vector<int32_t>& rank_of) {
  const size_t n = rank_of.size();
  if (n % 2 != 0) return false;
  for (size_t c = 0; c < n; ++c) {
    if (rank_of[c] != static_cast<int32_t>(std::min(c, n - 1 - c))) return false;
  }
  return true;
}

}  // namespace

Items::Items(const ModelConfig& c)
    : encoder_layers(c.encoder_layers), decoder_layers(c.decoder_layers) {
  if (c.kind == ModelKind::encoder_decoder) {
    encoder_norm = encoder_layers + 1;
    target_embedding = encoder_norm + 1;
  }
  decoder_norm = target_embedding + decoder_layers + 1;
  output = decoder_norm + 1;
}

Passing passing(const ModelConfig& config, int64_t item) {
  const Items items(config);
  const bool pre = config.norm_position == NormPosition::pre;
  if (item <= items.encoder_norm)
    return {.source_rows = true, .stream = true, .branch = pre && item > items.encoder_layer(0)};
  if (item == items.target_embedding) return {.memory = true};
  return {.stream = true,
          .branch = pre && item > items.decoder_layer(0) && item <= items.decoder_norm,
          .memory = items.encodes() && item < items.decoder_norm};
}

ItemRange Stages::range(int64_t chunk) const {
  return {cuts[static_cast<size_t>(chunk)], cuts[static_cast<size_t>(chunk + 1)]};
}

int64_t Stages::chunk_of(int64_t item) const {
  int64_t chunk = 0;
  while (chunk + 1 < chunks() && !range(chunk).has(item)) ++chunk;
  return chunk;
}

bool Stages::holds(int64_t item) const {
  return rank_of.empty() || rank_of[static_cast<size_t>(chunk_of(item))] == rank;
}

std::vector<int64_t> cut_items(const std::vector<double>& costs,
                               const std::vector<int32_t>& rank_of) {
  const int64_t chunks = std::ssize(rank_of);
  if (std::ssize(costs) < chunks)
    throw Error(Errc::invalid_argument, "pipeline",
                fmt::format("{} chunks of a model with {} items (embeddings, layers, norms, "
                            "output): lower parallel.pp or parallel.chunks",
                            chunks, costs.size()));
  std::vector<double> sums{0};
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  if (!is_v(rank_of)) return cut_row(sums, chunks);
  VCut v(sums, chunks / 2);
  const double ideal = sums.back() / static_cast<double>(chunks / 2);
  std::vector<int64_t> cuts;
  // 1% steps find the least within 1%; the sum of squares then balances chunks.
  for (double most = ideal * 1.001; cuts.empty(); most *= 1.01) cuts = v.within(most);
  return cuts;
}

}  // namespace saturate::model
