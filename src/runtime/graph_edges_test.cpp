// SPDX-License-Identifier: Apache-2.0
#include "runtime/graph_edges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>

namespace saturate {
namespace {

// The nodes that have ended when each begins, as far as edges with `ends` say.
std::vector<std::set<int32_t>> ended_before(size_t nodes, const std::vector<GraphEdge>& edges) {
  std::vector<std::set<int32_t>> sets(nodes);
  for (size_t round = 0; round < nodes; ++round) {
    for (const GraphEdge& e : edges) {
      if (!e.ends) continue;
      auto& to = sets[static_cast<size_t>(e.to)];
      const auto& from = sets[static_cast<size_t>(e.from)];
      to.insert(from.begin(), from.end());
      to.insert(e.from);
    }
  }
  return sets;
}

std::vector<GraphEdge> without(const std::vector<GraphEdge>& edges,
                               const std::vector<size_t>& out) {
  std::vector<GraphEdge> left;
  for (size_t i = 0; i < edges.size(); ++i)
    if (std::ranges::find(out, i) == out.end()) left.push_back(edges[i]);
  return left;
}

// Two lanes: a collective on the second follows the one before it and what the first brings; the
// first goes on with its result. So its edge from the collective before it says nothing new.
TEST(GraphEdges, ACollectiveNeedNotFollowTheOneBeforeWhoseResultItReads) {
  const std::vector<GraphEdge> edges{{0, 1}, {1, 2}, {2, 3}, {1, 3}, {3, 4}};
  EXPECT_EQ(implied_edges(5, edges), std::vector<size_t>{3});
  const std::vector<GraphEdge> beside{{0, 1}, {0, 2}, {1, 3}, {2, 3}};
  EXPECT_TRUE(implied_edges(4, beside).empty());
}

TEST(GraphEdges, AnEdgeThatDoesNotWaitForTheEndNeitherGoesNorImpliesOthers) {
  const std::vector<GraphEdge> edges{{0, 1, false}, {1, 2}, {0, 2}};
  EXPECT_TRUE(implied_edges(3, edges).empty());
  const std::vector<GraphEdge> early{{0, 1}, {1, 2}, {0, 2, false}};
  EXPECT_TRUE(implied_edges(3, early).empty());
}

TEST(GraphEdges, WhatIsLeftHasTheSameOrderAndNothingThatCouldGo) {
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    const size_t nodes = 2 + random() % 24;
    std::vector<int32_t> name(nodes);  // numbers need not be in the order of the edges
    for (size_t v = 0; v < nodes; ++v) name[v] = static_cast<int32_t>(v);
    std::ranges::shuffle(name, random);
    std::vector<GraphEdge> edges;
    for (size_t a = 0; a < nodes; ++a)
      for (size_t b = a + 1; b < nodes; ++b)
        if (random() % 4 == 0) edges.push_back({name[a], name[b], random() % 8 != 0});
    std::ranges::shuffle(edges, random);
    const std::vector<GraphEdge> left = without(edges, implied_edges(nodes, edges));
    EXPECT_EQ(ended_before(nodes, edges), ended_before(nodes, left)) << i;
    for (size_t e = 0; e < left.size(); ++e) {
      if (!left[e].ends) continue;
      EXPECT_NE(ended_before(nodes, left), ended_before(nodes, without(left, {e}))) << i;
    }
  }
}

}  // namespace
}  // namespace saturate
