// SPDX-License-Identifier: Apache-2.0
// One event of a Kineto trace, and two readers of it: a quick one for what profilers write, and a
// careful one that knows all of JSON and says what is wrong.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/read/json_tokens.h"
#include "observe/trace/record.h"

namespace saturate::observe {

// Categories as Kineto has written them over the years.
enum class KinetoCategory : uint8_t {
  none,
  kernel,
  copy,
  fill,
  call,
  annotation,
  operation,
  overhead,
  memory,  // an instant of the allocator
};

struct KinetoFields {
  KinetoCategory category = KinetoCategory::none;
  bool complete = false;  // phase X
  bool instant = false;   // phase i
  bool has_start = false;
  int64_t start_ns = 0, duration_ns = 0;
  int64_t pid = 0, device = -1, context = 0, stream = 0, correlation = kNoCorrelation;
  int64_t bytes = 0, blocks = 0, block_threads = 0;
  int64_t external_id = -1;  // of the operator that was running
  int64_t device_type = 0, device_id = 0, allocated = -1, reserved = -1;  // of the allocator
  std::string_view name, tid;
  std::string_view dims, types, values;                      // of an operator's inputs, as JSON
  std::string_view group, group_ranks, collective, element;  // of a collective's kernel, likewise
  int64_t elements_in = 0, elements_out = 0;
};

// Texts lie in the bytes that were read, or in `own_name` and `own_tid`.
struct KinetoEvent : KinetoFields {
  std::string own_name, own_tid;

  void clear() { static_cast<KinetoFields&>(*this) = {}; }
  // Whether anything is done with it.
  bool counts() const {
    return (complete && category != KinetoCategory::none && category != KinetoCategory::memory) ||
           (instant && category == KinetoCategory::memory);
  }
};

// Reads one object with tokens of bytes in memory; `bytes` are those that `json` reads and begin
// `offset` bytes into the file. Errors    Error{invalid_argument} with the place.
void read_event_carefully(JsonTokens& json, std::string_view bytes, int64_t offset,
                          KinetoEvent& event);

// What both agree on.
enum class KinetoField : uint8_t { ph, cat, name, ts, dur, pid, tid, args, other };
KinetoField kineto_field(std::string_view key);
KinetoCategory kineto_category(std::string_view category);
// The number that an argument of that name goes to, or null. `*product`: it is an array of factors.
int64_t* kineto_argument(KinetoEvent& event, std::string_view key, bool* product);
// Likewise of those kept as they are written.
std::string_view* kineto_raw_argument(KinetoEvent& event, std::string_view key);
// Not beyond 2^62; 0 when a factor is not positive.
int64_t saturating_product(int64_t product, int64_t factor);
constexpr size_t kKinetoText = 4096;  // bytes of a name that are kept

// How an event is laid out: bytes and values in turn. Profilers write events alike.
enum class KinetoUse : uint8_t { field, integer, product, raw, skipped };
struct KinetoLayout {
  struct Value {
    size_t bytes_before = 0;
    std::ptrdiff_t target = 0;  // in KinetoFields; of arguments that are used
    KinetoUse use = KinetoUse::skipped;
    KinetoField field = KinetoField::other;
    int depth = 0;
    bool operator==(const Value&) const = default;
  };
  std::string bytes;
  std::vector<Value> values;
  size_t bytes_after = 0;
  bool operator==(const KinetoLayout&) const = default;
};

// The quick reader. It remembers layouts and which came after which: of an event like one before
// only the values are read. One thread.
class KinetoQuick {
 public:
  KinetoQuick() { next_.emplace_back().fill(kNoLayout); }
  // Reads the object that `at` begins with. Returns the byte behind it, or null when it does not
  // end before `end` or is not written as profilers do; the careful reader then knows more. Accepts
  // nothing that the careful reader would not, and reads it as that does.
  const char* read(const char* at, const char* end, KinetoEvent& event);

 private:
  static constexpr size_t kMostLayouts = 32, kMostBytes = 4096;
  static constexpr uint8_t kNoLayout = UINT8_MAX;
  void last_is(uint8_t layout);

  std::vector<KinetoLayout> layouts_;
  std::vector<std::array<uint8_t, 2>> next_;  // of the start and of each layout
  uint8_t last_ = 0;                          // its place there
  KinetoLayout learnt_;
};

}  // namespace saturate::observe
