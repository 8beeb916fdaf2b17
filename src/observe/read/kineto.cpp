// SPDX-License-Identifier: Apache-2.0
#include "observe/read/kineto.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

#include "observe/read/decimal.h"
#include "observe/read/json_tokens.h"

namespace saturate::observe {
namespace {

// Categories as Kineto has written them over the years.
enum class Category : uint8_t { none, kernel, copy, fill, call, annotation, operation, overhead };

Category category_of(std::string_view c) {
  if (c == "kernel" || c == "Kernel") return Category::kernel;
  if (c == "gpu_memcpy" || c == "Memcpy") return Category::copy;
  if (c == "gpu_memset" || c == "Memset") return Category::fill;
  if (c == "cuda_runtime" || c == "cuda_driver" || c == "Runtime") return Category::call;
  if (c == "user_annotation") return Category::annotation;
  if (c == "cpu_op" || c == "Operator") return Category::operation;
  if (c == "overhead") return Category::overhead;
  return Category::none;
}

struct Event {
  Category category = Category::none;
  bool complete = false;  // phase X
  std::string name, tid;
  int64_t start_ns = 0, duration_ns = 0;
  bool has_start = false, has_duration = false;
  int64_t pid = 0, device = -1, context = 0, stream = 0, correlation = kNoCorrelation;
  int64_t bytes = 0, blocks = 0, block_threads = 0;
  int64_t offset = 0;

  void clear() {
    std::string keep_name = std::move(name), keep_tid = std::move(tid);
    *this = Event{};
    name = std::move(keep_name);
    tid = std::move(keep_tid);
    name.clear();
    tid.clear();
  }
};

class KinetoReader {
 public:
  explicit KinetoReader(Input& input) : json_(input) {
    trace_.source = "Kineto trace";
    trace_.framework = "PyTorch";
  }

  Trace read() {
    const JsonToken first = json_.next();
    if (first == JsonToken::begin_array) {
      read_events();
      seen_events_ = true;
    } else if (first == JsonToken::begin_object) {
      while (json_.next() == JsonToken::key) read_top_level();
    } else {
      json_.fail("a trace begins with '{' or '['");
    }
    if (!seen_events_) json_.fail("no \"traceEvents\" in the file");
    json_.next();  // nothing may follow
    trace_.sort();
    return std::move(trace_);
  }

 private:
  void read_top_level() {
    const bool events = json_.text() == "traceEvents", devices = json_.text() == "deviceProperties",
               ranks = json_.text() == "distributedInfo";
    const JsonToken value = json_.next();
    if (events) {
      if (value != JsonToken::begin_array) json_.fail("\"traceEvents\" is no array");
      seen_events_ = true;
      read_events();
    } else if (devices && value == JsonToken::begin_array) {
      read_devices();
    } else if (ranks && value == JsonToken::begin_object) {
      read_ranks();
    } else {
      json_.skip(value);
    }
  }

  void read_ranks() {
    int64_t rank = -1, world = 0;
    while (json_.next() == JsonToken::key) {
      const bool is_rank = json_.text() == "rank", is_world = json_.text() == "world_size";
      const JsonToken value = json_.next();
      if (is_rank && value == JsonToken::number)
        rank = integer(value, false);
      else if (is_world && value == JsonToken::number)
        world = integer(value, false);
      else
        json_.skip(value);
    }
    if (rank >= 0 && world > 1)
      trace_.notes.push_back(fmt::format(
          "rank {} of {}: waiting for a slower rank counts as communication", rank, world));
  }

  void read_devices() {
    for (JsonToken t = json_.next(); t != JsonToken::end_array; t = json_.next()) {
      if (t != JsonToken::begin_object) {
        json_.skip(t);
        continue;
      }
      DeviceInfo info;
      int64_t id = 0;
      while (json_.next() == JsonToken::key) {
        const std::string key(json_.text());
        const JsonToken value = json_.next();
        if (key == "id")
          id = integer(value);
        else if (key == "name" && value == JsonToken::string)
          info.name = json_.text();
        else if (key == "numSms")
          info.multiprocessors = integer(value);
        else
          json_.skip(value);
      }
      if (id >= 0 && id < 1024) trace_.devices[static_cast<uint32_t>(id)] = info;
    }
  }

  void read_events() {
    for (JsonToken t = json_.next(); t != JsonToken::end_array; t = json_.next()) {
      if (t != JsonToken::begin_object) json_.fail("an event is no object");
      event_.clear();
      event_.offset = json_.offset();
      while (json_.next() == JsonToken::key) read_field();
      add_event();
    }
  }

  void read_field() {
    const std::string_view key = json_.text();
    enum { ph, cat, name, ts, dur, pid, tid, args, other } field = other;
    if (key == "ph")
      field = ph;
    else if (key == "cat")
      field = cat;
    else if (key == "name")
      field = name;
    else if (key == "ts")
      field = ts;
    else if (key == "dur")
      field = dur;
    else if (key == "pid")
      field = pid;
    else if (key == "tid")
      field = tid;
    else if (key == "args")
      field = args;
    const JsonToken value = json_.next();
    const bool text = value == JsonToken::string || value == JsonToken::number;
    switch (field) {
      case ph:
        event_.complete = value == JsonToken::string && json_.text() == "X";
        break;
      case cat:
        if (value == JsonToken::string) event_.category = category_of(json_.text());
        break;
      case name:
        if (value == JsonToken::string) event_.name = json_.text();
        break;
      case ts:
        event_.start_ns = nanoseconds(value);
        event_.has_start = true;
        break;
      case dur:
        event_.duration_ns = nanoseconds(value);
        event_.has_duration = true;
        break;
      case pid:
        event_.pid = text ? integer(value, false) : 0;
        break;
      case tid:
        if (text) event_.tid = json_.text();
        break;
      case args:
        if (value == JsonToken::begin_object) return read_arguments();
        break;
      case other:
        break;
    }
    json_.skip(value);
  }

  void read_arguments() {
    while (json_.next() == JsonToken::key) {
      const std::string_view key = json_.text();
      int64_t* target = nullptr;
      bool product = false;
      if (key == "device")
        target = &event_.device;
      else if (key == "context")
        target = &event_.context;
      else if (key == "stream")
        target = &event_.stream;
      else if (key == "correlation")
        target = &event_.correlation;
      else if (key == "bytes")
        target = &event_.bytes;
      else if (key == "grid")
        target = &event_.blocks, product = true;
      else if (key == "block")
        target = &event_.block_threads, product = true;
      const JsonToken value = json_.next();
      if (target != nullptr && product && value == JsonToken::begin_array) {
        *target = read_product();
      } else if (target != nullptr && !product &&
                 (value == JsonToken::number || value == JsonToken::string)) {
        *target = integer(value, false);
      } else {
        json_.skip(value);
      }
    }
  }

  // Of the integers of an array, saturating.
  int64_t read_product() {
    constexpr int64_t kMost = int64_t{1} << 62;
    int64_t product = 1;
    for (JsonToken t = json_.next(); t != JsonToken::end_array; t = json_.next()) {
      const int64_t factor = t == JsonToken::number ? integer(t) : 1;
      json_.skip(t);
      if (factor <= 0)
        product = 0;
      else
        product = product > kMost / factor ? kMost : product * factor;
    }
    return product;
  }

  // Passes over the value; 0 for what is no integer, or an error if `strict`.
  int64_t integer(JsonToken value, bool strict = true) {
    int64_t n = 0;
    const std::string_view t = json_.text();
    const bool readable = value == JsonToken::number || value == JsonToken::string;
    const auto [end, error] = readable
                                  ? std::from_chars(t.data(), t.data() + t.size(), n)
                                  : std::from_chars_result{nullptr, std::errc::invalid_argument};
    const bool good = error == std::errc{} && end == t.data() + t.size();
    if (!good && strict && value == JsonToken::number) json_.fail("an integer was expected");
    if (!good && strict) json_.skip(value);
    return good ? n : 0;
  }

  int64_t nanoseconds(JsonToken value) {
    int64_t ns = 0;
    if (value != JsonToken::number || !parse_microseconds(json_.text(), &ns))
      json_.fail("a time in microseconds was expected");
    return ns;
  }

  void add_event() {
    if (!event_.complete || event_.category == Category::none || !event_.has_start) return;
    if (event_.duration_ns < 0) {
      ++trace_.malformed;
      return;
    }
    switch (event_.category) {
      case Category::kernel:
        return add_op(OpKind::kernel);
      case Category::copy:
        return add_op(OpKind::copy);
      case Category::fill:
        return add_op(OpKind::fill);
      case Category::call:
        return add_call();
      case Category::annotation:
        return add_span(SpanKind::range);
      case Category::operation:
        return add_span(SpanKind::overhead);
      case Category::overhead:
        return add_span(SpanKind::overhead);
      case Category::none:
        return;
    }
  }

  void add_op(OpKind kind) {
    const int64_t device = event_.device >= 0 ? event_.device : event_.pid;
    if (device < 0 || device >= 1024) {
      ++trace_.malformed;
      return;
    }
    DeviceOp op;
    op.start_ns = event_.start_ns;
    op.end_ns = event_.start_ns + event_.duration_ns;
    op.correlation = event_.correlation;
    op.size = kind == OpKind::kernel ? event_.blocks : event_.bytes;
    op.name = trace_.names.add(event_.name);
    op.stream =
        trace_.streams.add({0, static_cast<uint32_t>(device), static_cast<uint32_t>(event_.context),
                            static_cast<uint64_t>(event_.stream)});
    op.block_threads = static_cast<uint32_t>(event_.block_threads);
    op.kind = kind;
    if (kind == OpKind::copy) read_copy_name(&op);
    trace_.ops.push_back(op);
  }

  // "Memcpy HtoD (Pageable -> Device)"
  void read_copy_name(DeviceOp* op) const {
    const std::string_view n = event_.name;
    const auto has = [&](std::string_view part) { return n.find(part) != std::string_view::npos; };
    if (has("HtoD"))
      op->copy = CopyKind::host_to_device;
    else if (has("DtoH"))
      op->copy = CopyKind::device_to_host;
    else if (has("DtoD"))
      op->copy = CopyKind::device_to_device;
    else if (has("PtoP"))
      op->copy = CopyKind::peer;
    if (has("Pageable"))
      op->memory = HostMemory::pageable;
    else if (has("Pinned"))
      op->memory = HostMemory::pinned;
  }

  uint32_t thread() { return trace_.threads.add({0, thread_number(event_.tid)}); }

  uint64_t thread_number(std::string_view text) {
    uint64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error == std::errc{} && end == text.data() + text.size()) return n;
    return trace_.names.add(text) | (uint64_t{1} << 63);  // a name, not a number
  }

  void add_call() {
    trace_.calls.push_back({event_.start_ns, event_.start_ns + event_.duration_ns,
                            event_.correlation, trace_.names.add(event_.name), thread()});
  }

  void add_span(SpanKind kind) {
    const bool loader = event_.name.starts_with("enumerate(DataLoader)");
    if (event_.category == Category::operation && !loader) return;
    if (loader) kind = SpanKind::loader;
    trace_.spans.push_back({event_.start_ns, event_.start_ns + event_.duration_ns,
                            trace_.names.add(event_.name), thread(), kind});
  }

  JsonTokens json_;
  Trace trace_;
  Event event_;
  bool seen_events_ = false;
};

}  // namespace

Trace read_kineto(Input& input) { return KinetoReader(input).read(); }

}  // namespace saturate::observe
