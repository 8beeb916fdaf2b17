// SPDX-License-Identifier: Apache-2.0
// The order between nodes of a captured graph, as data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace saturate {

// `to` begins when `from` has ended; where `ends` is false it may begin while `from` still runs.
struct GraphEdge {
  int32_t from = 0, to = 0;
  bool ends = true;
};

// Indices of the edges that others imply: another way of edges with `ends` leads from their `from`
// to their `to`. Without them the graph has the same order. Edges without `ends` are never among
// them. The graph has no cycle, and each edge once.
//
// Cost  memory of the graph's size; time of a search backwards from each node with several edges to
//       it, no further than to the earliest node that one of these comes from.
std::vector<size_t> implied_edges(size_t nodes, std::span<const GraphEdge> edges);

}  // namespace saturate
