// SPDX-License-Identifier: Apache-2.0
// Where a recording in windows is joined to one stretch. After a pause a recorder knows nothing of
// the work that the device still holds from before: it sees what is issued from then on, and that
// runs when the old work is done. Cut at one time for both, the device would seem to wait.
#pragma once
#include <cstdint>
#include <string>

#include "observe/trace/pauses.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Finds two clocks that stand still in pauses, one for calls and spans, one for operations. Both
// lose the same time at each pause, the host's earlier by as much as it is ahead of the device when
// the recording goes on: from the call of the first operation that is seen, back to a call as far
// ahead of the end of the window before. Where a call that waits began in a pause, both go on when
// it returns. A window in which the host is so far ahead that little of it would be left is cut as
// well.
class Seams {
 public:
  static constexpr int64_t kMostLeadNs = 1'000'000'000;

  // In any order; they may overlap.
  void add(Pause pause);
  // Settles the pauses that end well before `complete_ns`, with the records, sorted, from
  // kMostLeadNs before the first of them on; INT64_MAX: all. Cost: O(records), and of each window
  // the first 4096 calls.
  void settle(const Trace& trace, int64_t complete_ns);
  // No record that starts before will be moved otherwise than now, whatever pauses come later, if
  // those start at `last_ns` or after.
  int64_t settled_until(int64_t last_ns) const;

  const PausedClock& host() const { return host_; }
  const PausedClock& device() const { return device_; }
  std::string note() const;  // on windows that were cut; or empty

 private:
  PausedClock paused_, host_, device_;
  int64_t settled_ns_ = INT64_MIN;  // all pauses that start before are in the two clocks
  static constexpr int64_t kNever = INT64_MIN / 2;
  int64_t window_from_ns_ = kNever;  // what is kept of the window before the next one
  int64_t skipped_ = 0;
};

// Moves records that start before `until_ns` from the end of `from` onto those clocks and into
// `into`, which has the same tables. Leaves out operations and calls that began in a pause; spans
// are cut.
void move_settled(Trace& from, const Seams& seams, int64_t until_ns, Trace& into);

// Sorts `trace`, and cuts its pauses.
void cut_pauses(Trace& trace);

}  // namespace saturate::observe
