// SPDX-License-Identifier: Apache-2.0
#include "plan/step_list.h"

#include <algorithm>
#include <numeric>

#include "plan/cost.h"
#include "train/coded_sums.h"

namespace saturate::plan {
namespace {

using parallel::CollectiveKind;

// Reads and writes of AdamW for each owned element: master, moments and gradient in, master and
// moments out, and the weight as products read it; the norm reads the gradient once more.
constexpr double kAdamwBytes = 4 * 8, kLaunches = 3;

// Of an element that travels in 8 bits: gradient and residual in, residual and code out; then the
// sum's code in and the gradient out.
constexpr double kCodedBytes = 2 * 4 + 4 + 1 + 1 + 4;

// Meetings that are no transfers.
constexpr int64_t kWorldMeeting = int64_t{1} << 60, kTableMeeting = kWorldMeeting + 2;

class Assembler {
 public:
  Assembler(const Recorded& recorded, const Machine& machine, const Simulated& simulated)
      : r_(recorded), m_(machine), simulated_(simulated) {
    waited_for_.resize(r_.operations.size());
    for (const Task& t : r_.operations) {
      links_ = std::max(links_, t.lane + 1);
      for (const int32_t w : t.waits) waited_for_[static_cast<size_t>(w)] = true;
    }
    before_.resize(static_cast<size_t>(links_));
    transfer_tasks_.assign(r_.steps.size(), -1);
  }

  TaskList run() {
    start_gathers();
    const bool staged = r_.stages.size() > 1;
    for (size_t s = 0; s < r_.steps.size(); ++s) {
      if (simulated_.has(r_.steps[s].micro_batch)) add_step(s, staged);
    }
    if (r_.world.size() > 1 && (staged || !loss_summed_)) sum_loss();
    for (const SharedTable& t : r_.tables) sum_table(t);
    reduce_until({r_.steps.size(), 0}, staged);
    wait_for(last_reduction_);
    update();
    return std::move(list_);
  }

 private:
  // Behind what its lane did last; returns its number. Of a collective `lane` starts it.
  int32_t add(Task task, int32_t lane) {
    auto& before = before_[static_cast<size_t>(lane)];
    task.waits.insert(task.waits.end(), before.begin(), before.end());
    task.lane = task.kind == TaskKind::communication ? links_ : lane;
    for (const int32_t w : task.waits) whole_[static_cast<size_t>(w)] = true;
    whole_.push_back(!simulated_.merged || task.kind == TaskKind::communication);
    list_.push_back(std::move(task));
    return static_cast<int32_t>(list_.size()) - 1;
  }
  // The lane goes on when the task has ended.
  int32_t add_and_wait(Task task, int32_t lane) {
    const auto& before = before_[static_cast<size_t>(lane)];
    if (before.size() == 1 && task.waits.empty() && task.kind == TaskKind::compute) {
      const int32_t last = before.front();
      Task& joined = list_[static_cast<size_t>(last)];
      if (!whole_[static_cast<size_t>(last)] && joined.lane == lane) {
        joined.us += task.us;
        return last;
      }
    }
    const int32_t number = add(std::move(task), lane);
    before_[static_cast<size_t>(lane)] = {number};
    return number;
  }
  void wait_for(int32_t task) {
    if (task >= 0) before_[0].push_back(task);
  }
  Task collective(const char* name, CollectiveKind kind, double bytes,
                  const std::vector<int>& ranks, std::string axis) const {
    return {.name = name,
            .kind = TaskKind::communication,
            .us = collective_us(m_, kind, bytes, placement_of(m_, ranks)),
            .axis = std::move(axis)};
  }

  // The weights that other ranks have updated, in the order in which they are needed.
  void start_gathers() {
    for (const Bucket& b : r_.buckets) {
      if (b.zero == 1 || b.zero == 2) gathers_.push_back({&b, -1});
    }
    std::ranges::stable_sort(gathers_, {}, [](const Gather& g) { return g.bucket->needed; });
    for (Gather& g : gathers_) g.task = gather(*g.bucket);
  }

  int32_t gather(const Bucket& b) {
    return add(collective("gather of the weights", CollectiveKind::all_gather,
                          b.elements * r_.compute_bytes, b.ranks, b.axes),
               0);
  }

  void add_step(size_t number, bool staged) {
    const RecordedStep& s = r_.steps[number];
    if (s.runs.empty()) {
      transfer_tasks_[number] = add(s.transfer, 0);
      reduce_until({number, 0}, staged);
      return;
    }
    for (const size_t w : s.waits) wait_for(transfer_tasks_[w]);
    for (const OperationRange& range : s.runs) run_segment(number, range, staged);
  }

  // Lanes start behind what lane 0 holds, and lane 0 goes on when all have ended.
  void run_segment(size_t step, const OperationRange& range, bool staged) {
    for (const int32_t t : before_[0]) whole_[static_cast<size_t>(t)] = true;
    for (size_t lane = 1; lane < before_.size(); ++lane) before_[lane] = before_[0];
    std::vector<int32_t> tasks(static_cast<size_t>(range.size()));
    for (int32_t i = range.begin; i < range.end; ++i) {
      for (; arrived_ < gathers_.size() && gathers_[arrived_].bucket->needed <= Point{step, i};
           ++arrived_)
        wait_for(gathers_[arrived_].task);
      Task t = r_.operations[static_cast<size_t>(i)];
      for (int32_t& w : t.waits) w = tasks[static_cast<size_t>(w - range.begin)];
      const int32_t lane = t.lane, task = add_and_wait(std::move(t), lane);
      tasks[static_cast<size_t>(i - range.begin)] = task;
      if (waited_for_[static_cast<size_t>(i)]) whole_[static_cast<size_t>(task)] = true;
      reduce_until({step, i}, staged);
    }
    for (size_t lane = 1; lane < before_.size(); ++lane) {
      for (const int32_t t : before_[lane]) wait_for(t);
    }
  }

  void reduce_until(const Point& point, bool staged) {
    for (; reduced_ < r_.buckets.size() && r_.buckets[reduced_].finished <= point; ++reduced_) {
      const Bucket& b = r_.buckets[reduced_];
      if (b.zero >= 2 && b.replicas.size() == 1) continue;
      if (!staged && !loss_summed_) sum_loss();
      const auto kind = b.zero > 0 ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
      const double bytes = b.elements * r_.gradient_bytes;
      if (b.coded && b.zero == 0) {
        sum_in_codes(b.elements, b.ranks, b.axes);
        continue;
      }
      if (b.zero < 2)
        last_reduction_ = add(collective(name_of(kind), kind, bytes, b.ranks, b.axes), 0);
      const auto sharers = static_cast<double>(b.ranks.size());
      if (b.coded)
        sum_in_codes(b.elements / sharers, b.replicas, "copies");
      else if (b.replicas.size() > 1)
        last_reduction_ = add(collective("sum over the copies", CollectiveKind::all_reduce,
                                         bytes / sharers, b.replicas, "copies"),
                              0);
    }
  }

  // As CodedSums does; what codes and adds moves kCodedBytes an element, between the transfers.
  void sum_in_codes(double elements, const std::vector<int>& ranks, const std::string& axis) {
    const auto n = static_cast<int>(ranks.size());
    const train::CodedParts parts(static_cast<int64_t>(elements), n);
    const double bytes = 4.0 * static_cast<double>(parts.words) * n;
    Task exchange =
        collective("exchange of parts in 8 bits", CollectiveKind::all_to_all, bytes, ranks, axis);
    exchange.us += traffic_us(m_, elements * kCodedBytes);
    add(std::move(exchange), 0);
    last_reduction_ = add(
        collective("gather of sums in 8 bits", CollectiveKind::all_gather, bytes, ranks, axis), 0);
  }

  void sum_loss() {
    loss_summed_ = true;
    Task t = collective("sum of the loss", CollectiveKind::all_reduce, 24, r_.world, "loss");
    t.meeting = kWorldMeeting;
    last_reduction_ = add(std::move(t), 0);
  }

  void sum_table(const SharedTable& table) {
    Task t = collective("sum of a table", CollectiveKind::all_reduce,
                        table.elements * r_.gradient_bytes, table.ranks, "pp");
    t.meeting = kTableMeeting + table.number;
    add_and_wait(std::move(t), 0);
  }

  // The norm, over the ranks that have parts of it, and AdamW on what the rank owns.
  void update() {
    if (r_.norm_ranks.size() > 1)
      add_and_wait(collective("norm over the ranks", CollectiveKind::all_reduce, r_.norm_bytes,
                              r_.norm_ranks, "norm"),
                   0);
    if (r_.stages.size() > 1) {
      Task t = collective("norm over the stages", CollectiveKind::all_reduce, 8, r_.stages, "norm");
      t.meeting = kWorldMeeting + 1;
      add_and_wait(std::move(t), 0);
    }
    // State in host memory comes and goes at the same time, and the update is hidden behind that.
    const double crossing_us =
        r_.memory.host > 0 ? static_cast<double>(r_.memory.host) / (m_.host_copy_gbs * 1e3) : 0;
    const double us = std::max(crossing_us, traffic_us(m_, r_.owned * kAdamwBytes)) +
                      kLaunches * m_.compute.launch_us;
    add({.name = "adamw", .us = us}, 0);
  }

  struct Gather {
    const Bucket* bucket;
    int32_t task;
  };

  const Recorded& r_;
  const Machine& m_;
  const Simulated& simulated_;
  int32_t links_ = 1;                         // the lane of collectives
  std::vector<std::vector<int32_t>> before_;  // by lane: what its next task waits for
  std::vector<bool> waited_for_;              // by operation: on another lane
  std::vector<bool> whole_;                   // by task: nothing may be added to it
  std::vector<int32_t> transfer_tasks_;       // by step
  std::vector<Gather> gathers_;
  size_t arrived_ = 0, reduced_ = 0;
  int32_t last_reduction_ = -1;
  bool loss_summed_ = false;
  TaskList list_;
};

}  // namespace

TaskList step_list(const Recorded& recorded, const Machine& machine, const Simulated& simulated) {
  return Assembler(recorded, machine, simulated).run();
}

}  // namespace saturate::plan
