// SPDX-License-Identifier: Apache-2.0
#include "parallel/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "parallel/host_sum.h"

namespace saturate::parallel {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

// A collective that a rank has started and that lacks others.
struct Pending {
  int rank = 0;
  int64_t number = 0;  // its ticket
  Collective c;
  const char* input = nullptr;
  char* output = nullptr;
  int transfers = 0;  // send_receive: partners that it has not met yet

  size_t bytes(int64_t elements) const { return at(elements) * size_of(c.dtype); }
  // Where the part for or from position j begins.
  size_t offset(const std::vector<int64_t>& counts, int j) const {
    int64_t before = 0;
    for (int i = 0; i < j; ++i) before += counts[at(i)];
    return bytes(before);
  }
};

// Part of `from` that goes to `to`, for the kinds with counts.
void move_part(const Pending& from, const Pending& to) {
  const int a = from.c.group.position(from.rank), b = to.c.group.position(to.rank);
  if (from.c.send_counts[at(b)] == 0) return;
  std::memcpy(to.output + to.offset(to.c.receive_counts, a),
              from.input + from.offset(from.c.send_counts, b),
              from.bytes(from.c.send_counts[at(b)]));
}

// `all` in the order of positions. Inputs are read before any output is written, so that in place is
// as good as apart.
void perform(const std::vector<Pending*>& all) {
  const Collective& c = all.front()->c;
  const size_t part = all.front()->bytes(c.count);
  const auto sum_of = [&](size_t offset) {
    std::vector<char> sum(part);
    for (size_t i = 0; i < all.size(); ++i) {
      const char* from = (all[i]->input ? all[i]->input : all[i]->output) + offset;
      if (i == 0)
        std::memcpy(sum.data(), from, part);
      else
        add_into(c.dtype, sum.data(), from, c.count);
    }
    return sum;
  };
  switch (c.kind) {
    case CollectiveKind::all_reduce: {
      const std::vector<char> sum = sum_of(0);
      for (Pending* p : all) std::memcpy(p->output, sum.data(), part);
      break;
    }
    case CollectiveKind::reduce_scatter:
      for (size_t i = 0; i < all.size(); ++i)
        std::memcpy(all[i]->output, sum_of(i * part).data(), part);
      break;
    case CollectiveKind::all_gather:
      for (size_t i = 0; i < all.size(); ++i)
        for (Pending* p : all) std::memmove(p->output + i * part, all[i]->input, part);
      break;
    case CollectiveKind::broadcast:
      for (Pending* p : all)
        if (p != all[at(c.root)]) std::memcpy(p->output, all[at(c.root)]->output, part);
      break;
    case CollectiveKind::all_to_all:
      for (const Pending* from : all)
        for (const Pending* to : all) move_part(*from, *to);
      break;
    case CollectiveKind::send_receive:
      break;  // goes pair by pair
  }
}

class Lockstep {
 public:
  explicit Lockstep(int ranks) : states_(at(ranks)) {}

  // Of the running rank.
  int64_t start(Pending p) {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw Error(Errc::collective, "lockstep", failure_);
    State& mine = states_[at(p.rank)];
    p.number = ++mine.started;
    const auto owned = std::make_shared<Pending>(std::move(p));
    mine.open[owned->number] = owned;
    if (owned->c.kind == CollectiveKind::send_receive)
      meet_partners(owned);
    else
      meet_group(owned);
    return owned->number;
  }

  void wait(int rank, int64_t ticket) {
    std::unique_lock lock(mutex_);
    State& mine = states_[at(rank)];
    mine.waits_for = ticket;
    if (!mine.can_run()) pass_on(rank);
    turn_.wait(lock, [&] { return running_ == rank; });
    mine.waits_for = 0;
    if (!failure_.empty()) throw Error(Errc::collective, "lockstep", failure_);
  }

  void run(int rank, const std::function<void()>& body) {
    {
      std::unique_lock lock(mutex_);
      turn_.wait(lock, [&] { return running_ == rank; });
    }
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    State& mine = states_[at(rank)];
    mine.ended = true;
    if (error) {
      if (!first_error_) first_error_ = error;
      fail(fmt::format("rank {} ended with an error", rank));
    } else if (!mine.open.empty()) {
      fail(fmt::format("rank {} has ended, and others have not joined its {}", rank,
                       describe(mine.open.begin()->second->c)));
    }
    pass_on(rank);
  }

  void rethrow() const {
    if (first_error_) std::rethrow_exception(first_error_);
    if (!failure_.empty()) throw Error(Errc::collective, "lockstep", failure_);
  }

 private:
  using Owned = std::shared_ptr<Pending>;
  struct State {
    int64_t started = 0, waits_for = 0;
    std::map<int64_t, Owned> open;  // started and not done, by ticket
    std::deque<Owned> line;         // those of groups, in order
    bool ended = false;
    // A wait is for the ticket and all before it.
    bool can_run() const {
      return !ended && (waits_for == 0 || open.empty() || open.begin()->first > waits_for);
    }
  };

  // From now on every rank can go on, one after another as before, and sees the failure.
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  [[noreturn]] void refuse(const Pending& a, const Pending& b) {
    fail(fmt::format("ranks {} and {} have started different things: {}; {}", a.rank, b.rank,
                     describe(a.c), describe(b.c)));
    throw Error(Errc::collective, "lockstep", failure_);
  }

  void finish(const Pending& p) { states_[at(p.rank)].open.erase(p.number); }

  void meet_group(const Owned& p) {
    const std::vector<int>& ranks = p->c.group.ranks;
    auto& queues = groups_[ranks];
    queues.resize(ranks.size());
    auto& mine = queues[at(p->c.group.position(p->rank))];
    mine.push_back(p);
    for (const auto& queue : queues)
      if (queue.size() >= mine.size() &&
          !matches(p->c, p->rank, queue[mine.size() - 1]->c, queue[mine.size() - 1]->rank))
        refuse(*queue[mine.size() - 1], *p);
    states_[at(p->rank)].line.push_back(p);
    while (perform_next()) {
    }
  }

  // One collective that all its ranks have come to: those of a rank run in the order in which it
  // started them, whatever their groups, as on a stream.
  bool perform_next() {
    for (const State& state : states_) {
      if (state.line.empty()) continue;
      const std::vector<int> ranks = state.line.front()->c.group.ranks;
      auto& queues = groups_[ranks];
      std::vector<Owned> owned;
      for (size_t i = 0; i < queues.size(); ++i) {
        const std::deque<Owned>& line = states_[at(ranks[i])].line;
        if (!queues[i].empty() && line.front() == queues[i].front()) owned.push_back(line.front());
      }
      if (owned.size() < ranks.size()) continue;
      std::vector<Pending*> all;
      for (const Owned& p : owned) all.push_back(p.get());
      perform(all);
      for (size_t i = 0; i < queues.size(); ++i) {
        queues[i].pop_front();
        states_[at(ranks[i])].line.pop_front();
        finish(*owned[i]);
      }
      return true;
    }
    return false;
  }

  void meet_partners(const Owned& p) {
    const Collective& c = p->c;
    for (int j = 0; j < c.group.size(); ++j)
      p->transfers += c.send_counts[at(j)] + c.receive_counts[at(j)] > 0;
    for (int j = 0; j < c.group.size(); ++j) {
      if (c.send_counts[at(j)] + c.receive_counts[at(j)] == 0) continue;
      const int peer = c.group.ranks[at(j)];
      auto& theirs = pairs_[{c.group.ranks, peer, p->rank}];
      if (peer == p->rank) {
        move_part(*p, *p);
        if (--p->transfers == 0) finish(*p);
      } else if (theirs.empty()) {
        pairs_[{c.group.ranks, p->rank, peer}].push_back(p);
      } else {
        const Owned partner = std::move(theirs.front());
        theirs.pop_front();
        if (!matches(c, p->rank, partner->c, peer)) refuse(*partner, *p);
        move_part(*p, *partner);
        move_part(*partner, *p);
        for (Pending* both : {p.get(), partner.get()})
          if (--both->transfers == 0) finish(*both);
      }
    }
  }

  // Under the lock: the turn goes to the next rank that can run.
  void pass_on(int rank) {
    const auto n = static_cast<int>(states_.size());
    const auto next_of = [&](const auto& can) {
      for (int i = 1; i <= n; ++i)
        if (can(states_[at((rank + i) % n)])) return (rank + i) % n;
      return -1;
    };
    const auto has_work = [](const State& s) { return !s.ended; };
    int next = failure_.empty() ? next_of([](const State& s) { return s.can_run(); }) : -1;
    if (next < 0 && (next = next_of(has_work)) >= 0 && failure_.empty()) fail(who_waits());
    if (next < 0) return;
    running_ = next;
    turn_.notify_all();
  }

  std::string who_waits() const {
    std::string text = "no rank can go on";
    for (size_t r = 0; r < states_.size(); ++r) {
      const State& s = states_[r];
      text += s.ended ? fmt::format("; rank {} has ended after {} collectives", r, s.started)
                      : fmt::format("; rank {} waits for its collective {}: {}", r,
                                    s.open.begin()->first, describe(s.open.begin()->second->c));
    }
    return text;
  }

  std::mutex mutex_;
  std::condition_variable turn_;
  int running_ = 0;
  std::vector<State> states_;
  std::map<std::vector<int>, std::vector<std::deque<Owned>>> groups_;          // queues by position
  std::map<std::tuple<std::vector<int>, int, int>, std::deque<Owned>> pairs_;  // group, from, with
  std::string failure_;
  std::exception_ptr first_error_;
};

class LockstepCommunicator final : public Communicator {
 public:
  LockstepCommunicator(Lockstep& lockstep, int rank, int size)
      : Communicator({}, rank, size), lockstep_(lockstep) {}
  const char* name() const noexcept override { return "lockstep"; }
  void wait(Ticket ticket, const Context&) override {
    if (ticket) lockstep_.wait(rank(), ticket.number);
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    std::vector<double> padded(at(bytes) / sizeof(double) + 1);
    std::memcpy(padded.data(), data, at(bytes));
    whole({.kind = CollectiveKind::broadcast,
           .group = world(),
           .dtype = DType::f64,
           .count = std::ssize(padded),
           .root = root},
          nullptr, padded.data());
    std::memcpy(data, padded.data(), at(bytes));
  }
  double all_reduce_sum(double value) override {
    whole({.group = world(), .dtype = DType::f64, .count = 1}, nullptr, &value);
    return value;
  }
  double all_reduce_max(double value) override {
    std::vector<double> all(at(size()));
    whole({.kind = CollectiveKind::all_gather, .group = world(), .dtype = DType::f64, .count = 1},
          &value, all.data());
    return *std::max_element(all.begin(), all.end());
  }
  void set_step(int64_t) noexcept override {}
  void set_action(const char*, Pace) noexcept override {}
  void report_failure(const std::exception&) override {}

 private:
  void connect(const Group&) override {}
  Ticket run(const Collective& c, const void* input, void* output, const Context&) override {
    return {lockstep_.start({.rank = rank(),
                             .c = c,
                             .input = static_cast<const char*>(input),
                             .output = static_cast<char*>(output)})};
  }
  void whole(const Collective& c, const void* input, void* output) {
    wait(start(c, input, output, {}), {});
  }

  Lockstep& lockstep_;
};

}  // namespace

void run_lockstep(int ranks, const std::function<void(Communicator&)>& body) {
  Lockstep lockstep(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      LockstepCommunicator communicator(lockstep, rank, ranks);
      lockstep.run(rank, [&] { body(communicator); });
    });
  for (std::thread& t : threads) t.join();
  lockstep.rethrow();
}

}  // namespace saturate::parallel
