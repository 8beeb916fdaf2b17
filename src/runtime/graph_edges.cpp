// SPDX-License-Identifier: Apache-2.0
#include "runtime/graph_edges.h"

#include <algorithm>

#include "base/error.h"

namespace saturate {
namespace {

// Edges by the node that they come to, or go from: those of node v are list[begin[v]] on.
struct ByNode {
  std::vector<size_t> begin, list;
  ByNode(size_t nodes, std::span<const GraphEdge> edges, int32_t GraphEdge::*end)
      : begin(nodes + 1), list(edges.size()) {
    for (const GraphEdge& e : edges) ++begin[static_cast<size_t>(e.*end) + 1];
    for (size_t v = 0; v < nodes; ++v) begin[v + 1] += begin[v];
    std::vector<size_t> next = begin;
    for (size_t i = 0; i < edges.size(); ++i) list[next[static_cast<size_t>(edges[i].*end)]++] = i;
  }
  std::span<const size_t> of(int32_t node) const {
    const auto v = static_cast<size_t>(node);
    return std::span(list).subspan(begin[v], begin[v + 1] - begin[v]);
  }
};

// By node, its place in an order in which every edge goes forwards.
std::vector<size_t> places(size_t nodes, std::span<const GraphEdge> edges, const ByNode& into,
                           const ByNode& from) {
  std::vector<size_t> missing(nodes), place(nodes);
  std::vector<int32_t> ready;
  for (size_t v = 0; v < nodes; ++v) {
    missing[v] = into.of(static_cast<int32_t>(v)).size();
    if (missing[v] == 0) ready.push_back(static_cast<int32_t>(v));
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    place[static_cast<size_t>(ready[i])] = i;
    for (const size_t e : from.of(ready[i]))
      if (--missing[static_cast<size_t>(edges[e].to)] == 0) ready.push_back(edges[e].to);
  }
  SAT_ASSERT(ready.size() == nodes);
  return place;
}

}  // namespace

std::vector<size_t> implied_edges(size_t nodes, std::span<const GraphEdge> edges) {
  const ByNode into(nodes, edges, &GraphEdge::to), from(nodes, edges, &GraphEdge::from);
  const std::vector<size_t> place = places(nodes, edges, into, from);
  std::vector<size_t> implied, seen(nodes, nodes);  // by node: for which node it was reached last
  std::vector<int32_t> open;
  for (size_t v = 0; v < nodes; ++v) {
    const std::span<const size_t> incoming = into.of(static_cast<int32_t>(v));
    if (incoming.size() < 2) continue;
    size_t earliest = nodes;
    for (const size_t e : incoming)
      earliest = std::min(earliest, place[static_cast<size_t>(edges[e].from)]);
    const auto before = [&](int32_t node) {
      for (const size_t e : into.of(node)) {
        const auto u = static_cast<size_t>(edges[e].from);
        if (!edges[e].ends || seen[u] == v || place[u] < earliest) continue;
        seen[u] = v;
        open.push_back(edges[e].from);
      }
    };
    for (const size_t e : incoming)
      if (edges[e].ends) before(edges[e].from);
    while (!open.empty()) {
      const int32_t node = open.back();
      open.pop_back();
      before(node);
    }
    for (const size_t e : incoming)
      if (edges[e].ends && seen[static_cast<size_t>(edges[e].from)] == v) implied.push_back(e);
  }
  return implied;
}

}  // namespace saturate
