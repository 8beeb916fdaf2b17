// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data. A model is cut into chunks, each rank holds one or more of them, and a
// schedule is each rank's list of actions in order. Generators make the computing actions, lower()
// adds the transfers, flaw_of() proves a list whoever made it, and one interpreter runs it
// (train/micro_batches.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace saturate::parallel::pipeline {

// A backward pass is one action (backward), or two: the gradient of the chunk's input, which the
// chunk before waits for, and the gradients of the weights, for which nobody does.
enum class ActionKind : uint8_t {
  forward,
  backward,
  input_gradient,
  weight_gradient,
  send_forward,      // the chunk's result to the next chunk
  receive_forward,   // the chunk's input
  send_backward,     // the gradient of the chunk's input to the chunk before
  receive_backward,  // the gradient of the chunk's result
};
constexpr int kActionKinds = 8;

struct Action {
  ActionKind kind = ActionKind::forward;
  int32_t chunk = 0;
  int32_t micro_batch = 0;
  bool computes() const noexcept { return kind <= ActionKind::weight_gradient; }
  friend bool operator==(const Action&, const Action&) = default;
};

struct Schedule {
  int32_t micro_batches = 0;
  std::vector<int32_t> rank_of;              // by chunk
  std::vector<std::vector<Action>> actions;  // by rank
  int32_t ranks() const noexcept { return static_cast<int32_t>(actions.size()); }
  int32_t chunks() const noexcept { return static_cast<int32_t>(rank_of.size()); }
  // Whether chunks c - 1 and c lie on different ranks, so that what passes is sent.
  bool crosses(int32_t c) const noexcept {
    return c > 0 && c < chunks() &&
           rank_of[static_cast<size_t>(c)] != rank_of[static_cast<size_t>(c - 1)];
  }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// How chunks lie on ranks. Looped: chunk c on rank c modulo ranks. V: down the ranks and up again, so
// that the first and the last chunk share rank 0 and tables that both need are held once.
enum class Placement : uint8_t { looped, v_shape };
std::vector<int32_t> place(Placement placement, int32_t ranks, int32_t chunks_per_rank);

// Seconds, or any other unit, of an action by chunk, and of a transfer. A backward action takes the
// sum of both gradients.
struct ActionTimes {
  std::vector<double> forward = {}, input_gradient = {}, weight_gradient = {};
  double transfer = 0;
  double of(const Action& a) const;  // of a computing action
};
// Every computing action takes one unit.
ActionTimes unit_times(int32_t chunks);

enum class ScheduleKind : uint8_t { gpipe, one_f_one_b, interleaved, zero_bubble };

struct ScheduleRequest {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int32_t ranks = 1;
  int32_t micro_batches = 1;
  int32_t chunks_per_rank = 1;
  ActionTimes times = {};  // measured or estimated, by chunk; none: unit_times()
};

// The computing actions of a schedule. Micro-batches pass each chunk in order, forward and backward,
// so gradients are summed in the order of one rank.
//
//   gpipe        all forwards, then all backwards (Huang et al., arXiv:1811.06965).
//   one_f_one_b  rank r holds ranks - r micro-batches at most (Narayanan et al., arXiv:2006.09503). With two
//                chunks a rank these lie in a V, and the list is made by times.
//   interleaved  looped chunks (Narayanan et al., arXiv:2104.04473).
//   zero_bubble  one chunk a rank: ZB-H1, in which rank r computes a weight gradient r input
//                gradients later; two: in a V, made by times under the memory bound of ZB-V (Qi et
//                al., arXiv:2401.10241).
// Lists by times come from list_schedule(); where there is a fixed list too, the shorter one is
// taken. One rank with one chunk: F0 B0 F1 B1 ..., whatever the kind.
// Errors  invalid_argument (counts below 1; chunks that the kind does not have; interleaved
//         micro-batches that are no multiple of the ranks; times of another number of chunks).
Schedule make_schedule(const ScheduleRequest& request);

// Greedy lists by times: whenever a rank is free it starts what can start first; input gradients go
// before forwards, forwards before weight gradients, which fill what would be idle. A rank holds
// `bound` activations of a chunk at most, from the forward to the last of the gradients. Split
// backward passes or whole ones. Several patiences (how long to wait for something better than a
// weight gradient) are tried and the shortest list is taken.
Schedule list_schedule(std::vector<int32_t> rank_of, int32_t micro_batches,
                       const ActionTimes& times, bool split, int32_t bound);

// When each action of a list begins and ends, with transfers beside the computation. Transfers in
// the list take no time of their own here: a result is there `transfer` after it was computed.
struct Span {
  double begin = 0, end = 0;
};
struct Simulation {
  std::vector<std::vector<Span>> spans;  // by rank and place in its list
  double makespan = 0;
  // The part of the ranks' time in which they compute nothing: 1 - work / (ranks * makespan).
  double bubble = 0;
};
// Errors: invalid_argument when an action's input is never computed before it can run.
Simulation simulate(const Schedule& schedule, const ActionTimes& times);

// The list with transfers: each lies where it can start when actions take `times`, and all ranks'
// transfers lie in one common order, so that ranks which run them one at a time never wait in a
// ring. A receive comes as early in the list as that order allows, so that it runs beside the
// computation. Transfers that are there already are made anew.
// Errors: those of simulate().
Schedule lower(const Schedule& schedule, const ActionTimes& times);

// "" for a list that is right, else what is not, with rank, place and action: every chunk computes
// the forward and the gradients of each micro-batch once, on its rank and in an order that can run;
// micro-batches begin in order on every chunk; with transfers, each result that another rank needs
// is sent after it was computed and received before it is used, once, and no ranks wait for each
// other for ever when each runs one action at a time and a transfer needs both. A schedule has all
// its transfers or none. `bound`: activations that a rank may hold, 0: any number.
std::string flaw_of(const Schedule& schedule, int32_t bound = 0);

// Activations (of one micro-batch on one chunk) that each chunk holds at most, from its forward to
// the last of its gradients.
std::vector<int32_t> in_flight(const Schedule& schedule);

// "0F3", "2I1", "1SEND_F0": chunk, kind, micro-batch, as PyTorch writes them.
std::string to_text(const Action& action);
// A line of actions for each rank, separated by commas: the CSV of torch.distributed.pipelining.
std::string to_text(const Schedule& schedule);
// Reads it back; empty cells and lines of blanks are passed over. `name` is the file's, for errors.
// Errors: invalid_argument with line and cell (no action, a kind of PyTorch's that Saturate does
// without, a chunk on two ranks or on none), and flaw_of()'s text.
Schedule parse_schedule(const std::string& text, const std::string& name);

// A timeline of simulate() for Perfetto or chrome://tracing: JSON, a row for each rank, an event for
// each computing action with an arrow for each transfer. Times are in seconds.
std::string to_timeline(const Schedule& schedule, const ActionTimes& times);

}  // namespace saturate::parallel::pipeline
