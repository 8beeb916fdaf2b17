// SPDX-License-Identifier: Apache-2.0
#include "observe/read/sat_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "observe/read/sat_format.h"
#include "observe/read/seams.h"

namespace saturate::observe {
namespace {

constexpr size_t kReleaseRecords = 50'000;
constexpr int64_t kMostNs = 4'000'000'000'000'000'000;

class SatCapture : public Capture {
 public:
  SatCapture(std::unique_ptr<Input> input, size_t window, SatPauses pauses)
      : input_(std::move(input)), window_(window), cut_pauses_(pauses == SatPauses::cut) {
    trace_.source = "saturate capture";
    char magic[sat::kMagic.size()];
    const std::string_view seen(magic, read(magic, sizeof magic));
    seeded_ = seen == sat::kMagic;
    if (seeded_ || seen == sat::kUnseededMagic) return;
    if (!seen.starts_with(sat::kFamily)) fail("this is no capture of saturate");
    throw Error(
        Errc::invalid_argument, "doctor",
        fmt::format("{}: a capture of format {}, and this program reads {}; read it with the "
                    "version of saturate that recorded it",
                    input_->name(), printable(seen), sat::kMagic));
  }

  // Records pile up until the writer says that they are complete; what a window leaves is the
  // analyser's to drop.
  bool read_window() override {
    const size_t before = trace_.records();
    bool more = true;
    while (more && !(trace_.records() >= before + window_ && at_flush_)) {
      more = read_block();
      if (cut_pauses_ && (!more || (at_flush_ && read_.records() >= next_release_))) release(!more);
    }
    trace_.sort();
    return more;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(Errc::invalid_argument, "doctor",
                fmt::format("{}: at byte {}: {}; copy or record the file again", input_->name(),
                            block_at_, problem));
  }

  size_t read(char* dst, size_t bytes) {
    size_t got = 0;
    while (got < bytes) {
      const size_t n = input_->read(dst + got, bytes - got);
      if (n == 0) break;
      got += n;
    }
    offset_ += static_cast<int64_t>(got);
    return got;
  }

  bool cut() {
    std::string note =
        fmt::format("the capture was cut off at byte {}; what came before is analysed", block_at_);
    if (const auto [launches, ns] = launches_without_work(); launches > 0)
      note += fmt::format(": {} launches of its last {:.3f} s have no record of their work",
                          launches, 1e-9 * static_cast<double>(ns));
    into_.notes.push_back(std::move(note));
    return false;
  }

  // Of the records that are still held: how many launches have no operation that they issued, and
  // from when the first was made to the last call. What was let go before is of earlier times.
  std::pair<int64_t, int64_t> launches_without_work() const {
    std::unordered_set<int64_t> numbers, launches;
    int64_t from_ns = kMostNs, to_ns = -kMostNs;
    for (const Trace* t : {&read_, &trace_}) {
      for (const DeviceOp& op : t->ops) numbers.insert(op.correlation);
    }
    for (const Trace* t : {&read_, &trace_}) {
      for (const HostCall& c : t->calls) {
        to_ns = std::max(to_ns, c.end_ns);
        if (c.correlation < 0 || t->names[c.name].find("Launch") == std::string::npos ||
            numbers.contains(c.correlation))
          continue;
        launches.insert(c.correlation);
        from_ns = std::min(from_ns, c.start_ns);
      }
    }
    if (numbers.contains(kNoCorrelation)) return {0, 0};  // they may be any launch's
    return {static_cast<int64_t>(launches.size()), std::max<int64_t>(0, to_ns - from_ns)};
  }

  // False at the end.
  bool read_block() {
    at_flush_ = false;
    block_at_ = offset_;
    sat::Header header;
    const size_t got = read(reinterpret_cast<char*>(&header), sizeof header);
    if (got < sizeof header) return cut();
    if (header.bytes > sat::kMaxPayload) fail("a block longer than 64 MiB");
    payload_.resize(header.bytes);
    if (read(payload_.data(), header.bytes) < header.bytes) return cut();
    if (sat::checksum(seeded_ ? header.kind : 0, payload_.data(), payload_.size()) !=
        header.checksum) {
      // What a machine that went down had not yet written lies at the end.
      if (char next; read(&next, 1) == 0) return cut();
      fail("a block whose checksum is wrong");
    }
    at_ = 0;
    switch (static_cast<sat::Block>(header.kind)) {
      case sat::Block::names:
        while (at_ < payload_.size()) {
          // Two texts may be equal: numbers of the file and of the table differ then.
          names_.push_back(into_.names.add(text()));
        }
        return true;
      case sat::Block::streams:
        return read_streams();
      case sat::Block::threads:
        return read_threads();
      case sat::Block::devices:
        return read_devices();
      case sat::Block::ops:
        return read_ops();
      case sat::Block::calls:
        return read_calls();
      case sat::Block::spans:
        return read_spans();
      case sat::Block::memory:
        return read_memory();
      case sat::Block::copies:
        return read_copy_rates();
      case sat::Block::stacks:
        return read_stacks();
      case sat::Block::samples:
        return read_samples();
      case sat::Block::parents:
        while (at_ < payload_.size()) {
          const auto r = take<sat::ParentRecord>();
          into_.parents[r.process] = r.parent;
        }
        return true;
      case sat::Block::host_uses:
        return read_host_uses();
      case sat::Block::pauses:
        return read_pauses();
      case sat::Block::cost: {
        const auto slowdown = take<double>();
        if (!(slowdown >= 0.01 && slowdown <= 100)) fail("a cost of the capture that cannot be");
        into_.slowdown = slowdown;
        return true;
      }
      case sat::Block::notes:
        while (at_ < payload_.size()) {
          std::string note(text());
          if (!seen_framework_)
            into_.framework = std::move(note);
          else
            into_.notes.push_back(std::move(note));
          seen_framework_ = true;
        }
        return true;
      case sat::Block::flush:
        at_flush_ = true;
        complete_ns_ = std::clamp(take<int64_t>(), -kMostNs, kMostNs);
        return true;
      case sat::Block::end:
        into_.dropped = take<int64_t>();
        return false;
    }
    return true;  // of a later version
  }

  // Hands on what has its place on the clock without pauses.
  void release(bool last) {
    read_.sort();
    seams_.settle(read_, last ? INT64_MAX : complete_ns_);
    const auto latest = [](const auto& records) {
      return records.empty() ? INT64_MIN / 2 : records.back().start_ns;
    };
    const int64_t last_ns = read_.calls.empty() ? latest(read_.ops) : latest(read_.calls);
    copy_tables();
    if (last && !seams_.note().empty()) trace_.notes.push_back(seams_.note());
    move_settled(read_, seams_,
                 last ? INT64_MAX : seams_.settled_until(std::min(last_ns, complete_ns_)), trace_);
    next_release_ = 2 * read_.records() + std::min(window_, kReleaseRecords);
  }

  // The same names and keys in the same order, so with the same numbers.
  void copy_tables() {
    const auto add = [](const auto& from, auto& to) {
      for (auto i = static_cast<uint32_t>(to.size()); i < from.size(); ++i) to.add(from[i]);
    };
    add(read_.names, trace_.names);
    add(read_.streams, trace_.streams);
    add(read_.threads, trace_.threads);
    add(read_.stacks, trace_.stacks);
    trace_.parents = read_.parents;
    trace_.devices = read_.devices;
    trace_.framework = read_.framework;
    trace_.notes = read_.notes;
    trace_.copy_rates = read_.copy_rates;
    trace_.host_uses = read_.host_uses;
    trace_.slowdown = read_.slowdown;
    trace_.dropped = read_.dropped;
    trace_.malformed = read_.malformed;
    trace_.memory_by_calls = read_.memory_by_calls;
  }

  template <class T>
  T take() {
    T value;
    if (payload_.size() - at_ < sizeof value) fail("a block that ends inside a record");
    std::memcpy(&value, payload_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string_view text() {
    const auto size = take<uint32_t>();
    if (payload_.size() - at_ < size) fail("a text longer than its block");
    const std::string_view t(payload_.data() + at_, size);
    at_ += size;
    return t;
  }

  bool read_streams() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::StreamRecord>();
      if (r.device >= 1024) fail("a device number above 1023");
      streams_.push_back(into_.streams.add({r.process, r.device, r.context, r.stream}));
    }
    return true;
  }

  bool read_threads() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::ThreadRecord>();
      threads_.push_back(into_.threads.add({static_cast<uint32_t>(r.process), r.thread}));
    }
    return true;
  }

  bool read_devices() {
    while (at_ < payload_.size()) {
      const auto id = take<uint64_t>();
      const auto multiprocessors = take<int64_t>();
      if (id >= 1024) fail("a device number above 1023");
      into_.devices[static_cast<uint32_t>(id)] = {std::string(text()), multiprocessors};
    }
    return true;
  }

  bool read_pauses() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::PauseRecord>();
      if (r.start_ns < -kMostNs || r.end_ns > kMostNs || r.end_ns < r.start_ns)
        fail("a pause that ends before it starts");
      if (cut_pauses_)
        seams_.add({r.start_ns, r.end_ns});
      else
        into_.pauses.push_back({r.start_ns, r.end_ns});
    }
    return true;
  }

  bool read_copy_rates() {
    CopyRates rates;
    for (double* rate :
         {&rates.pinned_in, &rates.pinned_out, &rates.pageable_in, &rates.pageable_out}) {
      *rate = take<double>();
      if (!(*rate > 0 && *rate < 1e6)) fail("a rate of copies that cannot be");
    }
    rates.device = text();
    rates.bus = text();
    into_.copy_rates.take(rates);
    return true;
  }

  uint32_t name(uint32_t id) const {
    if (id == 0) return 0;
    if (id > names_.size()) fail("a record with a name that was not written");
    return names_[id - 1];
  }

  static bool sensible(int64_t start, int64_t duration) {
    return start >= -kMostNs && start <= kMostNs && duration >= 0 && duration <= kMostNs / 2;
  }

  bool read_ops() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::OpRecord>();
      if (r.stream >= streams_.size()) fail("an operation on a stream that was not written");
      if (!sensible(r.start_ns, r.duration_ns) || r.kind > 3 || r.copy > 4 || r.memory > 2) {
        ++into_.malformed;
        continue;
      }
      into_.ops.push_back({r.start_ns, r.start_ns + r.duration_ns, r.correlation, r.size,
                           name(r.name), streams_[r.stream], r.block_threads,
                           static_cast<OpKind>(r.kind), static_cast<CopyKind>(r.copy),
                           static_cast<HostMemory>(r.memory)});
    }
    return true;
  }

  bool read_calls() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::CallRecord>();
      if (r.thread >= threads_.size()) fail("a call of a thread that was not written");
      if (!sensible(r.start_ns, r.duration_ns)) {
        ++into_.malformed;
        continue;
      }
      into_.calls.push_back({r.start_ns, r.start_ns + r.duration_ns, r.correlation, name(r.name),
                             threads_[r.thread]});
    }
    return true;
  }

  bool read_spans() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::SpanRecord>();
      if (r.thread >= threads_.size()) fail("a span of a thread that was not written");
      if (!sensible(r.start_ns, r.duration_ns) || r.kind > static_cast<uint32_t>(kLastSpanKind)) {
        ++into_.malformed;
        continue;
      }
      into_.spans.push_back({r.start_ns, r.start_ns + r.duration_ns, name(r.name),
                             threads_[r.thread], static_cast<SpanKind>(r.kind)});
    }
    return true;
  }

  bool read_stacks() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::StackRecord>();
      stacks_.push_back(into_.stacks.add(
          {stack(r.caller), name(r.function), name(r.file), r.line, name(r.text)}));
    }
    return true;
  }

  uint32_t stack(uint32_t id) const {
    if (id == kNoStack) return kNoStack;
    if (id >= stacks_.size()) fail("a stack that was not written");
    return stacks_[id];
  }

  bool read_samples() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::SampleRecord>();
      if (r.thread >= threads_.size() || r.holder >= threads_.size())
        fail("a sample of a thread that was not written");
      const HostSample s{r.start_ns,
                         r.start_ns + r.duration_ns,
                         r.count,
                         threads_[r.thread],
                         stack(r.stack),
                         name(r.wait),
                         threads_[r.holder],
                         stack(r.holder_stack),
                         static_cast<HostState>(r.state)};
      if (!sensible(r.start_ns, r.duration_ns) || r.count == 0 || s.stack == kNoStack ||
          r.state > static_cast<uint32_t>(HostState::lock)) {
        ++into_.malformed;
        continue;
      }
      into_.samples.push_back(s);
    }
    return true;
  }

  bool read_host_uses() {
    while (at_ < payload_.size()) {
      const auto r = take<sat::HostUseRecord>();
      HostUse u;
      u.kind = static_cast<SpanKind>(r.kind);
      u.over_network = (r.flags & 1) != 0;
      u.in_memory = (r.flags & 2) != 0;
      u.files = r.files;
      u.bytes = r.bytes;
      u.storage_bytes = r.storage_bytes;
      u.waited_ns = r.waited_ns;
      u.threads = r.threads;
      u.episodes = r.episodes;
      u.first_ns = r.first_ns;
      u.last_ns = r.last_ns;
      u.last_start_ns = r.last_start_ns;
      for (std::string* to : {&u.name, &u.example, &u.storage, &u.thread}) *to = text();
      const auto counts = {r.files, r.bytes, r.storage_bytes, r.waited_ns, r.threads, r.episodes};
      if (r.kind < static_cast<uint32_t>(SpanKind::file_read) ||
          r.kind > static_cast<uint32_t>(SpanKind::lock) || r.first_ns < -kMostNs ||
          r.last_start_ns < r.first_ns || r.last_ns < r.last_start_ns || r.last_ns > kMostNs ||
          std::any_of(counts.begin(), counts.end(), [](int64_t n) { return n < 0; })) {
        ++into_.malformed;
        continue;
      }
      into_.host_uses.push_back(std::move(u));
    }
    return true;
  }

  bool read_memory() {
    into_.memory_by_calls = true;
    while (at_ < payload_.size()) {
      const auto r = take<sat::MemoryRecord>();
      if (r.device >= 1024) fail("a device number above 1023");
      if (!sensible(r.time_ns, 0) || r.allocated < 0 || r.reserved < 0) {
        ++into_.malformed;
        continue;
      }
      into_.memory.push_back({r.time_ns, r.allocated, r.reserved, r.device});
    }
    return true;
  }

  std::unique_ptr<Input> input_;
  size_t window_;
  std::vector<char> payload_;
  size_t at_ = 0;
  int64_t offset_ = 0, block_at_ = 0;
  std::vector<uint32_t> names_, streams_, threads_,
      stacks_;  // numbers of the file to those of the trace
  const bool cut_pauses_;
  bool seeded_ = true;  // checksums of blocks, by their kinds
  Trace read_;          // what waits for its place, when pauses are cut
  Trace& into_ = cut_pauses_ ? read_ : trace_;
  Seams seams_;
  int64_t complete_ns_ = -kMostNs;
  size_t next_release_ = 0;  // records
  bool at_flush_ = false, seen_framework_ = false;
};

}  // namespace

std::unique_ptr<Capture> read_sat(std::unique_ptr<Input> input, size_t window, SatPauses pauses) {
  return std::make_unique<SatCapture>(std::move(input), window, pauses);
}

}  // namespace saturate::observe
