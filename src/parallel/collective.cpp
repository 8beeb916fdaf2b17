// SPDX-License-Identifier: Apache-2.0
#include "parallel/collective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

namespace saturate::parallel {
namespace {

constexpr std::array kNames = {"all_reduce", "reduce_scatter", "all_gather",
                               "broadcast",  "all_to_all",     "send_receive"};

size_t at(int position) { return static_cast<size_t>(position); }

std::string parts_text(const Group& group, const std::vector<int64_t>& counts, const char* way) {
  std::string text;
  for (size_t j = 0; j < counts.size(); ++j)
    if (counts[j] != 0) text += fmt::format(", {} {} rank {}", counts[j], way, group.ranks[j]);
  return text;
}

// Positions in the group with which this rank exchanges anything; all of them for the kinds in which
// everybody takes part.
bool takes_part(const Collective& c, int position) {
  return c.kind != CollectiveKind::send_receive || c.send_counts[at(position)] != 0 ||
         c.receive_counts[at(position)] != 0;
}

// An entry of a rank's list as the ranks of a group see it.
struct Entry {
  size_t index = 0;  // in the list
  const Collective* collective = nullptr;
};
using Sequence = std::vector<Entry>;

std::string who(int rank, const Sequence& sequence, size_t i) {
  if (i >= sequence.size())
    return fmt::format("rank {} has none left after its {}", rank, sequence.size());
  return fmt::format("entry {} of rank {} is {}", sequence[i].index, rank,
                     describe(*sequence[i].collective));
}

// The first place where the sequences that two ranks have in common differ.
std::string difference(const std::vector<int>& ranks, int a, const Sequence& of_a, int b,
                       const Sequence& of_b) {
  for (size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
    if (i < of_a.size() && i < of_b.size() &&
        matches(*of_a[i].collective, a, *of_b[i].collective, b))
      continue;
    return fmt::format("the collectives over ranks {} differ: {}; {}", fmt::join(ranks, ", "),
                       who(a, of_a, i), who(b, of_b, i));
  }
  return "";
}

using Lists = std::span<const std::vector<Collective>>;

// What all members of a group start, compared with what its first member starts; and what each two
// members send each other.
std::string sequences_differ(Lists lists) {
  std::map<std::vector<int>, std::vector<Sequence>> groups;                   // by rank
  std::map<std::pair<std::vector<int>, int>, std::map<int, Sequence>> pairs;  // by rank, then peer
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    for (size_t i = 0; i < lists[rank].size(); ++i) {
      const Collective& c = lists[rank][i];
      const auto self = static_cast<int>(rank);
      if (c.group.position(self) < 0 || c.group.ranks.back() >= std::ssize(lists))
        return fmt::format("entry {} of rank {} is {}: a rank of the group is wanted", i, rank,
                           describe(c));
      auto& sequences = groups[c.group.ranks];
      sequences.resize(lists.size());
      if (c.kind != CollectiveKind::send_receive) {
        sequences[rank].push_back({i, &c});
        continue;
      }
      for (int j = 0; j < c.group.size(); ++j)
        if (takes_part(c, j)) pairs[{c.group.ranks, self}][c.group.ranks[at(j)]].push_back({i, &c});
    }
  }
  for (const auto& [ranks, sequences] : groups) {
    const Sequence& first = sequences[at(ranks.front())];
    // Only the counts of all_to_all can differ between two ranks that both agree with the first.
    const bool all_pairs = std::any_of(first.begin(), first.end(), [](const Entry& e) {
      return e.collective->kind == CollectiveKind::all_to_all;
    });
    for (size_t i = 0; i < (all_pairs ? ranks.size() : 1); ++i) {
      for (const int b : ranks) {
        const int a = ranks[i];
        const std::string text = difference(ranks, a, sequences[at(a)], b, sequences[at(b)]);
        if (!text.empty()) return text;
      }
    }
  }
  static const Sequence kNone;
  for (const auto& [key, peers] : pairs) {
    const auto& [ranks, a] = key;
    for (const auto& [b, sequence] : peers) {
      const auto theirs = pairs.find({ranks, b});
      const Sequence* of_b = &kNone;
      if (theirs != pairs.end() && theirs->second.contains(a)) of_b = &theirs->second.at(a);
      const std::string text = difference(ranks, a, sequence, b, *of_b);
      if (!text.empty()) return text;
    }
  }
  return "";
}

// Runs the lists as ranks would: a collective is done when all its ranks have it at their head, an
// exchange when each of its partners has had it there.
std::string deadlock(Lists lists) {
  std::vector<size_t> head(lists.size());
  std::vector<std::set<int>> met(lists.size());  // partners of the exchange at the head, by rank
  const auto current = [&](int rank) {
    return head[at(rank)] < lists[at(rank)].size() ? &lists[at(rank)][head[at(rank)]] : nullptr;
  };
  const auto advances = [&](int rank) {
    const Collective* mine = current(rank);
    if (!mine) return false;
    bool all = true;
    for (int j = 0; j < mine->group.size(); ++j) {
      const int peer = mine->group.ranks[at(j)];
      if (!takes_part(*mine, j) || met[at(rank)].contains(peer)) continue;
      const Collective* theirs = current(peer);
      // What stands at the peer's head may have been met by the exchange before this one.
      const bool met_before = met[at(peer)].contains(rank);
      if (!theirs || met_before || !matches(*mine, rank, *theirs, peer)) {
        all = false;
      } else if (mine->kind == CollectiveKind::send_receive) {
        met[at(rank)].insert(peer);
        met[at(peer)].insert(rank);
      }
    }
    if (!all) return false;
    // The others of a collective stand at it and go on with this rank; those of an exchange by
    // themselves.
    const auto with =
        mine->kind == CollectiveKind::send_receive ? std::vector{rank} : mine->group.ranks;
    for (const int r : with) {
      ++head[at(r)];
      met[at(r)].clear();
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < std::ssize(lists); ++rank)
      while (advances(rank)) moved = true;
  }
  std::string text;
  bool all = true;
  for (int rank = 0; rank < std::ssize(lists); ++rank) {
    const Collective* waits = current(rank);
    all = all && !waits;
    text += waits ? fmt::format("; rank {} at entry {}: {}", rank, head[at(rank)], describe(*waits))
                  : fmt::format("; rank {} has ended", rank);
  }
  return all ? "" : "the collectives wait for each other for ever" + text;
}

}  // namespace

const char* name_of(CollectiveKind kind) noexcept { return kNames[static_cast<size_t>(kind)]; }

int Group::position(int rank) const noexcept {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

int64_t Collective::elements() const noexcept {
  if (kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_gather)
    return count * group.size();
  const auto sum = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  return std::max({count, sum(send_counts), sum(receive_counts)});
}

std::string describe(const Collective& c) {
  std::string what = fmt::format("{} {}", c.count, name_of(c.dtype));
  if (!c.send_counts.empty()) {
    const std::string parts =
        parts_text(c.group, c.send_counts, "to") + parts_text(c.group, c.receive_counts, "from");
    what = fmt::format("{} ({})", name_of(c.dtype), parts.empty() ? "nothing" : parts.substr(2));
  }
  if (c.kind == CollectiveKind::broadcast)
    what += fmt::format(" from rank {}", c.group.ranks[at(c.root)]);
  return fmt::format("{} of {} over {}{}ranks {}", name_of(c.kind), what, c.group.axes,
                     c.group.axes.empty() ? "" : " ", fmt::join(c.group.ranks, ", "));
}

bool matches(const Collective& a, int rank_a, const Collective& b, int rank_b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.count != b.count || a.root != b.root ||
      a.group.ranks != b.group.ranks)
    return false;
  if (a.send_counts.empty()) return true;
  const size_t to_a = at(a.group.position(rank_a)), to_b = at(a.group.position(rank_b));
  return a.send_counts[to_b] == b.receive_counts[to_a] &&
         a.receive_counts[to_b] == b.send_counts[to_a];
}

std::string mismatch_of(Lists lists) {
  std::string text = sequences_differ(lists);
  return text.empty() ? deadlock(lists) : text;
}

}  // namespace saturate::parallel
