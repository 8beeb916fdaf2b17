// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "observe/read/input.h"
#include "observe/read/kineto.h"
#include "observe/read/kineto_records.h"

namespace saturate::observe {

// The events of a trace, read by several threads. Each takes the next chunk of the input, which
// ends where an event seems to begin, and reads it while another unpacks the next. That a chunk
// does begin with an event is certain once the one before has been read: if not, as when the place
// lay inside an event, what was read of it is taken back and it is read again behind the rest of
// the one before. So the result is that of one thread, also for errors: the first in the file wins.
class KinetoChunks {
 public:
  // `unread`: bytes of the input that were taken already, `offset` bytes into the file, just behind
  // the bracket that begins the array.
  KinetoChunks(Input& input, std::string_view unread, int64_t offset, KinetoOptions options);

  // Up to the bracket that ends the array. Errors    Error{invalid_argument} with the place for
  // what is no array of events, or one of more than 32 MiB; whatever Input throws.
  void read();
  // What was found: records of each thread, each sorted, and the bytes behind the array.
  std::vector<std::unique_ptr<KinetoRecords>>& records() { return records_; }
  std::string_view rest() const { return rest_; }
  int64_t rest_offset() const { return rest_offset_; }

 private:
  struct Chunk {
    std::string memory;  // kept from chunk to chunk, and never shrunk: filling it costs
    size_t size = 0;
    std::string_view bytes() const { return std::string_view(memory).substr(0, size); }
    int64_t offset = 0;
    uint64_t number = 0;
    bool first = false;  // begins the array
    std::exception_ptr broken;
  };
  struct Outcome {
    size_t used = 0;    // bytes up to the end of the last event with its comma, or of the array
    bool done = false;  // the array ended
    std::exception_ptr failure;
  };
  bool take(Chunk& chunk);
  Outcome parse(std::string_view bytes, int64_t offset, bool first, KinetoRecords& into) const;
  void work(KinetoRecords& into);
  void settle(Chunk& chunk, Outcome outcome, const KinetoRecords::Mark& mark, KinetoRecords& into);

  Input& input_;
  const KinetoOptions options_;
  std::vector<std::unique_ptr<KinetoRecords>> records_;

  std::mutex input_mutex_;  // guards what follows
  std::string carry_;       // bytes behind the last chunk
  int64_t carry_offset_ = 0;
  uint64_t taken_ = 0;
  bool at_end_ = false;

  std::mutex mutex_;  // guards what follows
  std::condition_variable turn_changed_;
  uint64_t turn_ = 0;     // the chunk whose predecessors are settled
  bool stopped_ = false;  // by the end of the array or a failure: no more chunks are taken
  bool any_ = false;      // an event was read
  bool done_ = false;
  std::exception_ptr failure_;
  std::string tail_;  // of the chunks so far: an event that was not complete
  int64_t tail_offset_ = 0;
  std::string rest_;
  int64_t rest_offset_ = 0;
};

}  // namespace saturate::observe
