// SPDX-License-Identifier: Apache-2.0
// Whether a plan is sound, derived from its waits and places alone.
#include <fmt/format.h>

#include <algorithm>

#include "ops/tape.h"

namespace saturate {
namespace {

class Verifier {
 public:
  Verifier(const Tape& tape, const TapePlan& plan) : tape_(tape), plan_(plan) {
    accesses_.resize(static_cast<size_t>(tape.values()));
    for (int32_t i = 0; i < count(); ++i) {
      const Tape::Operation& o = operation(i);
      for (Value v : o.reads) add(v, i, false);
      for (Value v : o.writes) add(v, i, true);
    }
  }

  std::string flaw() {
    std::string f = waits();
    for (int32_t s = 0; f.empty() && s < tape_.values(); ++s) f = accesses(s);
    for (int32_t s = 0; f.empty() && s < tape_.values(); ++s) {
      if (!planned(s)) continue;
      f = place(s);
      for (int32_t other = 0; f.empty() && other < s; ++other) f = overlap(other, s);
    }
    return f;
  }

 private:
  struct Access {
    int32_t operation;
    bool writes;
  };

  int32_t count() const { return static_cast<int32_t>(tape_.operations()); }
  const Tape::Operation& operation(int32_t i) const {
    return tape_.operation(static_cast<size_t>(i));
  }
  const std::vector<Access>& of(int32_t storage) const {
    return accesses_[static_cast<size_t>(storage)];
  }
  const TapePlan::Place& at(int32_t storage) const {
    return plan_.places[static_cast<size_t>(storage)];
  }
  const char* label(int32_t storage) const { return tape_.info({storage}).label; }
  bool planned(int32_t s) const { return !of(s).empty() && !tape_.info({s}).external; }
  void add(Value v, int32_t i, bool writes) {
    if (v) accesses_[static_cast<size_t>(tape_.storage_of(v))].push_back({i, writes});
  }

  // Derives who has finished before whom: reached_[i][j] for j before i.
  std::string waits() {
    reached_.assign(static_cast<size_t>(count()), std::vector<bool>(static_cast<size_t>(count())));
    std::vector<int32_t> last(static_cast<size_t>(plan_.lanes), -1);  // of each lane
    for (int32_t i = 0; i < count(); ++i) {
      const OperationRange& segment = plan_.segments[static_cast<size_t>(operation(i).segment)];
      if (i < segment.begin || i >= segment.end)
        return fmt::format("operation {} left its segment", i);
      std::vector<bool>& before = reached_[static_cast<size_t>(i)];
      for (int32_t j = 0; j < segment.begin; ++j) before[static_cast<size_t>(j)] = true;
      const auto follow = [&](int32_t j) {
        const std::vector<bool>& theirs = reached_[static_cast<size_t>(j)];
        for (size_t k = 0; k < before.size(); ++k) before[k] = before[k] || theirs[k];
        before[static_cast<size_t>(j)] = true;
      };
      const auto lane = static_cast<size_t>(operation(i).traits.lane);
      bool ordered = lane == 0 || last[lane] >= segment.begin;
      if (last[lane] >= segment.begin) follow(last[lane]);
      for (int32_t j : plan_.waits[static_cast<size_t>(i)]) {
        if (j == TapePlan::kFork) {
          ordered = true;
        } else if (j < segment.begin || j >= i) {
          return fmt::format("operation {} waits for {}, which is not before it in its segment", i,
                             j);
        } else {
          follow(j);
        }
      }
      if (!ordered) {
        return fmt::format("operation {} ({}) starts lane {} before its segment has begun", i,
                           operation(i).name, lane);
      }
      last[lane] = i;
    }
    return {};
  }
  bool finished(int32_t before, int32_t i) const {
    return before == i || reached_[static_cast<size_t>(i)][static_cast<size_t>(before)];
  }

  std::string accesses(int32_t s) const {
    bool written = tape_.info({s}).external;
    for (size_t a = 0; a < of(s).size(); ++a) {
      const Access& access = of(s)[a];
      // What one operation reads comes first in its accesses: it is there before the operation.
      if (!written && !access.writes) {
        return fmt::format("operation {} ({}) reads {} before it is written", access.operation,
                           operation(access.operation).name, label(s));
      }
      written = true;
      for (size_t b = 0; b < a; ++b) {
        const Access& earlier = of(s)[b];
        if ((access.writes || earlier.writes) && !finished(earlier.operation, access.operation)) {
          return fmt::format("operation {} ({}) does not wait for {} ({}), and both use {}",
                             access.operation, operation(access.operation).name, earlier.operation,
                             operation(earlier.operation).name, label(s));
        }
      }
    }
    return {};
  }

  std::string place(int32_t s) const {
    const TapePlan::Place& p = at(s);
    const size_t room = p.stash ? plan_.stash_bytes : plan_.scratch_bytes;
    if (p.offset < 0 || p.offset % 256 != 0 ||
        static_cast<size_t>(p.offset) + tape_.info({s}).bytes() > room) {
      return fmt::format("{} lies at {}, outside its {} bytes or not aligned", label(s), p.offset,
                         room);
    }
    const auto segment = [&](const Access& a) { return operation(a.operation).segment; };
    const bool stays = tape_.info({s}).kept || segment(of(s).front()) != segment(of(s).back());
    if (plan_.slots > 1 && stays && !p.stash) {
      return fmt::format("{} outlives its segment in memory that slots share", label(s));
    }
    return {};
  }

  // Whether everything that touches a has finished before anything touches b.
  bool precedes(int32_t a, int32_t b) const {
    if (tape_.info({a}).kept) return false;
    return std::all_of(of(a).begin(), of(a).end(), [&](const Access& x) {
      return std::all_of(of(b).begin(), of(b).end(), [&](const Access& y) {
        return x.operation != y.operation && finished(x.operation, y.operation);
      });
    });
  }
  std::string overlap(int32_t a, int32_t b) const {
    if (!planned(a) || at(a).stash != at(b).stash) return {};
    const int64_t a_end = at(a).offset + static_cast<int64_t>(tape_.info({a}).bytes());
    const int64_t b_end = at(b).offset + static_cast<int64_t>(tape_.info({b}).bytes());
    if (at(a).offset >= b_end || at(b).offset >= a_end || precedes(a, b) || precedes(b, a))
      return {};
    return fmt::format("{} and {} share memory while both are alive", label(a), label(b));
  }

  const Tape& tape_;
  const TapePlan& plan_;
  std::vector<std::vector<Access>> accesses_;  // by storage, in the list's order
  std::vector<std::vector<bool>> reached_;
};

}  // namespace

std::string flaw_of(const Tape& tape, const TapePlan& plan) { return Verifier(tape, plan).flaw(); }

}  // namespace saturate
