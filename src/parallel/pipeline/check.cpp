// SPDX-License-Identifier: Apache-2.0
// Whether a list of actions is right. Nothing here is shared with those who make lists.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "parallel/pipeline/schedule.h"

namespace saturate::parallel::pipeline {
namespace {

using Kind = ActionKind;
size_t at(int32_t i) { return static_cast<size_t>(i); }

class Checker {
 public:
  Checker(const Schedule& s, int32_t bound)
      : s_(s), bound_(bound), done_(at(s.chunks() * s.micro_batches)) {}

  std::string flaw() {
    std::string f = shape();
    if (f.empty()) f = each_once();
    if (f.empty()) f = run();
    if (f.empty() && bound_ > 0) f = held();
    return f;
  }

 private:
  using Done = std::array<bool, kActionKinds>;

  Done& done(int32_t chunk, int32_t micro_batch) {
    return done_[at(chunk * s_.micro_batches + micro_batch)];
  }
  bool is_done(Kind kind, int32_t chunk, int32_t micro_batch) {
    return done(chunk, micro_batch)[static_cast<size_t>(kind)];
  }
  std::string where(int32_t rank, size_t i) const {
    return fmt::format("rank {}, action {} ({})", rank, i, to_text(s_.actions[at(rank)][i]));
  }

  std::string shape() const {
    if (s_.ranks() < 1 || s_.chunks() < 1 || s_.micro_batches < 1)
      return fmt::format("{} ranks, {} chunks, {} micro-batches: each must be at least 1",
                         s_.ranks(), s_.chunks(), s_.micro_batches);
    for (int32_t c = 0; c < s_.chunks(); ++c) {
      if (s_.rank_of[at(c)] < 0 || s_.rank_of[at(c)] >= s_.ranks())
        return fmt::format("chunk {} lies on rank {}, of {}", c, s_.rank_of[at(c)], s_.ranks());
    }
    return "";
  }

  // What a list may name, and that it names it once; then what is missing.
  std::string each_once() {
    for (int32_t r = 0; r < s_.ranks(); ++r) {
      const auto& list = s_.actions[at(r)];
      std::vector<int32_t> begun(at(s_.chunks())), turned(begun);
      for (size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        if (a.chunk < 0 || a.chunk >= s_.chunks() || a.micro_batch < 0 ||
            a.micro_batch >= s_.micro_batches)
          return where(r, i) + fmt::format(": there are {} chunks and {} micro-batches",
                                           s_.chunks(), s_.micro_batches);
        if (s_.rank_of[at(a.chunk)] != r)
          return where(r, i) +
                 fmt::format(": chunk {} lies on rank {}", a.chunk, s_.rank_of[at(a.chunk)]);
        if (!a.computes() && !s_.crosses(other_side(a)))
          return where(r, i) + ": nothing passes between ranks there";
        if (is_done(a.kind, a.chunk, a.micro_batch)) return where(r, i) + " stands there twice";
        done(a.chunk, a.micro_batch)[static_cast<size_t>(a.kind)] = true;
        transfers_ = transfers_ || !a.computes();
        const bool forward = a.kind == Kind::forward;
        if (!forward && a.kind != Kind::backward && a.kind != Kind::input_gradient) continue;
        int32_t& next = forward ? begun[at(a.chunk)] : turned[at(a.chunk)];
        if (a.micro_batch != next++)
          return where(r, i) +
                 fmt::format(": micro-batch {} comes first; they pass a chunk in order", next - 1);
      }
    }
    for (int32_t c = 0; c < s_.chunks(); ++c) {
      for (int32_t m = 0; m < s_.micro_batches; ++m) {
        const std::string what = missing(c, m);
        if (!what.empty()) return fmt::format("rank {}: {}", s_.rank_of[at(c)], what);
      }
    }
    done_.assign(done_.size(), {});
    return "";
  }

  // The boundary that a transfer goes over, by the chunk behind it.
  static int32_t other_side(const Action& a) {
    return a.kind == Kind::send_forward || a.kind == Kind::receive_backward ? a.chunk + 1 : a.chunk;
  }

  std::string missing(int32_t c, int32_t m) {
    const auto lacks = [&](Kind k) { return !is_done(k, c, m); };
    const auto say = [&](Kind k) { return to_text(Action{k, c, m}) + " is missing"; };
    if (lacks(Kind::forward)) return say(Kind::forward);
    const bool whole = !lacks(Kind::backward);
    if (whole && (!lacks(Kind::input_gradient) || !lacks(Kind::weight_gradient)))
      return to_text(Action{Kind::backward, c, m}) + " stands beside one of its halves";
    if (!whole && lacks(Kind::input_gradient)) return say(Kind::input_gradient);
    if (!whole && lacks(Kind::weight_gradient)) return say(Kind::weight_gradient);
    for (const Kind k :
         {Kind::send_forward, Kind::receive_forward, Kind::send_backward, Kind::receive_backward}) {
      if (transfers_ && s_.crosses(other_side({k, c, m})) && lacks(k)) return say(k);
    }
    return "";
  }

  // What an action needs done on its own rank; and of others, when there are no transfers.
  bool ready(const Action& a) {
    const int32_t c = a.chunk, m = a.micro_batch;
    const auto passed = [&](int32_t boundary, Kind received, Kind made, Kind or_made, int32_t by) {
      if (transfers_ && s_.crosses(boundary)) return is_done(received, c, m);
      return is_done(made, by, m) || is_done(or_made, by, m);
    };
    switch (a.kind) {
      case Kind::forward:
        return c == 0 || passed(c, Kind::receive_forward, Kind::forward, Kind::forward, c - 1);
      case Kind::backward:
      case Kind::input_gradient:
        return is_done(Kind::forward, c, m) &&
               (c + 1 == s_.chunks() ||
                passed(c + 1, Kind::receive_backward, Kind::backward, Kind::input_gradient, c + 1));
      case Kind::weight_gradient:
        return is_done(Kind::input_gradient, c, m);
      case Kind::send_forward:
        return is_done(Kind::forward, c, m);
      case Kind::send_backward:
        return is_done(Kind::backward, c, m) || is_done(Kind::input_gradient, c, m);
      default:
        return true;
    }
  }

  static Action partner(const Action& a) {
    switch (a.kind) {
      case Kind::send_forward:
        return {Kind::receive_forward, a.chunk + 1, a.micro_batch};
      case Kind::receive_forward:
        return {Kind::send_forward, a.chunk - 1, a.micro_batch};
      case Kind::send_backward:
        return {Kind::receive_backward, a.chunk - 1, a.micro_batch};
      default:
        return {Kind::send_backward, a.chunk + 1, a.micro_batch};
    }
  }

  // Runs the lists, one action at a time on a rank; a transfer needs both ranks to stand at it.
  std::string run() {
    std::vector<size_t> head(at(s_.ranks()));
    const auto current = [&](int32_t r) -> const Action* {
      const auto& list = s_.actions[at(r)];
      return head[at(r)] < list.size() ? &list[head[at(r)]] : nullptr;
    };
    const auto finish = [&](int32_t r) {
      const Action& a = *current(r);
      done(a.chunk, a.micro_batch)[static_cast<size_t>(a.kind)] = true;
      ++head[at(r)];
    };
    const auto advances = [&](int32_t r) {
      const Action* a = current(r);
      if (a == nullptr || !ready(*a)) return false;
      if (!a->computes()) {
        const Action other = partner(*a);
        const int32_t peer = s_.rank_of[at(other.chunk)];
        const Action* theirs = current(peer);
        if (theirs == nullptr || *theirs != other || !ready(other)) return false;
        finish(peer);
      }
      finish(r);
      return true;
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (int32_t r = 0; r < s_.ranks(); ++r)
        while (advances(r)) moved = true;
    }
    std::string text;
    for (int32_t r = 0; r < s_.ranks(); ++r) {
      if (current(r) != nullptr) text += (text.empty() ? "" : "; ") + where(r, head[at(r)]);
    }
    return text.empty() ? "" : "these wait for each other for ever: " + text;
  }

  std::string held() const {
    for (int32_t r = 0; r < s_.ranks(); ++r) {
      int32_t now = 0;
      const auto& list = s_.actions[at(r)];
      for (size_t i = 0; i < list.size(); ++i) {
        now += list[i].kind == Kind::forward;
        now -= list[i].kind == Kind::backward || list[i].kind == Kind::weight_gradient;
        if (now > bound_)
          return where(r, i) +
                 fmt::format(" is activation {} of those held, and {} is the bound", now, bound_);
      }
    }
    return "";
  }

  const Schedule& s_;
  const int32_t bound_;
  std::vector<Done> done_;  // by chunk and micro-batch
  bool transfers_ = false;
};

}  // namespace

std::string flaw_of(const Schedule& schedule, int32_t bound) {
  return Checker(schedule, bound).flaw();
}

std::vector<int32_t> in_flight(const Schedule& schedule) {
  std::vector<int32_t> now(schedule.rank_of.size()), most(now);
  for (const auto& list : schedule.actions) {
    for (const Action& a : list) {
      int32_t& n = now[at(a.chunk)];
      n += a.kind == Kind::forward;
      most[at(a.chunk)] = std::max(most[at(a.chunk)], n);
      n -= a.kind == Kind::backward || a.kind == Kind::weight_gradient;
    }
  }
  return most;
}

}  // namespace saturate::parallel::pipeline
