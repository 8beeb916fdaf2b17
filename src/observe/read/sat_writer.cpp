// SPDX-License-Identifier: Apache-2.0
#include "observe/read/sat_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace saturate::observe {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is that of the machine");

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}

// Records in blocks of about a megabyte.
constexpr size_t kBlock = 1 << 20;

// Never one of the standard three, which a program may have closed and would then write to.
std::FILE* open_above_standard(const char* path) {
  const int first = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const int fd = first < 0 ? -1 : ::fcntl(first, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (first >= 0) ::close(first);
  return fd < 0 ? nullptr : ::fdopen(fd, "wb");
}

}  // namespace

SatWriter::SatWriter(const std::string& path)
    : path_(path), file_(open_above_standard(path.c_str()), &std::fclose) {
  if (!file_)
    throw Error(
        Errc::io, "doctor",
        fmt::format("{}: {}; check the folder and its permissions", path, std::strerror(errno)));
  // Nothing may wait in the stream's buffer: a child process would write it once more.
  if (std::fwrite(sat::kMagic.data(), 1, sat::kMagic.size(), file_.get()) != sat::kMagic.size() ||
      std::fflush(file_.get()) != 0)
    throw Error(Errc::io, "doctor", path_ + ": cannot write; is the disk full?");
  whole_bytes_ = std::ftell(file_.get());
}
SatWriter::~SatWriter() = default;

void SatWriter::block(sat::Block kind, const std::string& payload) {
  const sat::Header header{
      static_cast<uint32_t>(kind), static_cast<uint32_t>(payload.size()),
      sat::checksum(static_cast<uint32_t>(kind), payload.data(), payload.size())};
  if (std::fwrite(&header, 1, sizeof header, file_.get()) != sizeof header ||
      std::fwrite(payload.data(), 1, payload.size(), file_.get()) != payload.size())
    throw Error(Errc::io, "doctor", path_ + ": cannot write; is the disk full?");
}

void SatWriter::write(const Trace& t, int64_t complete_ns) {
  std::string out;
  const auto send = [&](sat::Block kind, bool last) {
    if (out.size() < (last ? 1 : kBlock)) return;
    block(kind, out);
    out.clear();
  };
  for (; names_ < t.names.size(); ++names_) {
    put_text(out, t.names[static_cast<uint32_t>(names_)]);
    send(sat::Block::names, false);
  }
  send(sat::Block::names, true);
  for (; streams_ < t.streams.size(); ++streams_) {
    const StreamKey& k = t.streams[static_cast<uint32_t>(streams_)];
    put(out, sat::StreamRecord{k.process, k.device, k.context, 0, k.stream});
  }
  send(sat::Block::streams, true);
  for (; threads_ < t.threads.size(); ++threads_) {
    const ThreadKey& k = t.threads[static_cast<uint32_t>(threads_)];
    put(out, sat::ThreadRecord{k.process, k.thread});
  }
  send(sat::Block::threads, true);
  if (!wrote_devices_ && !t.devices.empty()) {
    for (const auto& [id, info] : t.devices) {
      put(out, uint64_t{id});
      put(out, info.multiprocessors);
      put_text(out, info.name);
    }
    send(sat::Block::devices, true);
    wrote_devices_ = true;
  }
  if (!wrote_framework_) {
    put_text(out, t.framework);
    wrote_framework_ = true;
  }
  for (; notes_ < t.notes.size(); ++notes_) put_text(out, t.notes[notes_]);
  send(sat::Block::notes, true);
  for (; pauses_ < t.pauses.size(); ++pauses_)
    put(out, sat::PauseRecord{t.pauses[pauses_].start_ns, t.pauses[pauses_].end_ns});
  send(sat::Block::pauses, true);
  if (t.slowdown != slowdown_) {
    put(out, slowdown_ = t.slowdown);
    send(sat::Block::cost, true);
  }
  if (!wrote_copy_rates_ && t.copy_rates.known()) {
    const CopyRates& r = t.copy_rates;
    for (const double rate : {r.pinned_in, r.pinned_out, r.pageable_in, r.pageable_out})
      put(out, rate);
    put_text(out, r.device);
    put_text(out, r.bus);
    send(sat::Block::copies, true);
    wrote_copy_rates_ = true;
  }
  for (const DeviceOp& op : t.ops) {
    put(out, sat::OpRecord{op.start_ns, op.end_ns - op.start_ns, op.correlation, op.size, op.name,
                           op.stream, op.block_threads, static_cast<uint8_t>(op.kind),
                           static_cast<uint8_t>(op.copy), static_cast<uint8_t>(op.memory), 0});
    send(sat::Block::ops, false);
  }
  send(sat::Block::ops, true);
  for (const HostCall& c : t.calls) {
    put(out, sat::CallRecord{c.start_ns, c.end_ns - c.start_ns, c.correlation, c.name, c.thread});
    send(sat::Block::calls, false);
  }
  send(sat::Block::calls, true);
  for (const HostSpan& s : t.spans) {
    put(out, sat::SpanRecord{s.start_ns, s.end_ns - s.start_ns, s.name, s.thread,
                             static_cast<uint32_t>(s.kind), 0});
    send(sat::Block::spans, false);
  }
  send(sat::Block::spans, true);
  for (const MemorySample& m : t.memory) {
    put(out, sat::MemoryRecord{m.time_ns, m.allocated, m.reserved, m.device, 0});
    send(sat::Block::memory, false);
  }
  send(sat::Block::memory, true);
  for (; stacks_ < t.stacks.size(); ++stacks_) {
    const StackNode& n = t.stacks[static_cast<uint32_t>(stacks_)];
    put(out, sat::StackRecord{n.caller, n.function, n.file, n.line, n.text});
    send(sat::Block::stacks, false);
  }
  send(sat::Block::stacks, true);
  for (const HostSample& s : t.samples) {
    put(out,
        sat::SampleRecord{s.start_ns, s.end_ns - s.start_ns, s.count, s.thread, s.stack, s.wait,
                          s.holder, s.holder_stack, static_cast<uint32_t>(s.state), 0});
    send(sat::Block::samples, false);
  }
  send(sat::Block::samples, true);
  if (t.parents.size() != parents_) {
    for (const auto& [process, parent] : t.parents) put(out, sat::ParentRecord{process, parent});
    send(sat::Block::parents, true);
    parents_ = t.parents.size();
  }
  for (const HostUse& u : t.host_uses) {
    put(out, sat::HostUseRecord{static_cast<uint32_t>(u.kind),
                                (u.over_network ? 1u : 0u) | (u.in_memory ? 2u : 0u), u.files,
                                u.bytes, u.storage_bytes, u.waited_ns, u.threads, u.episodes,
                                u.first_ns, u.last_ns, u.last_start_ns});
    for (const std::string* text : {&u.name, &u.example, &u.storage, &u.thread})
      put_text(out, *text);
  }
  send(sat::Block::host_uses, true);
  put(out, complete_ns);
  send(sat::Block::flush, true);
  if (std::fflush(file_.get()) != 0)
    throw Error(Errc::io, "doctor", path_ + ": cannot write; is the disk full?");
  whole_bytes_ = std::ftell(file_.get());
}

void SatWriter::abandon(const std::string& note) noexcept {
  if (!file_) return;
  __fpurge(file_.get());
  try {
    if (::ftruncate(::fileno(file_.get()), whole_bytes_) == 0 &&
        std::fseek(file_.get(), whole_bytes_, SEEK_SET) == 0) {
      std::string out;
      if (whole_bytes_ == int64_t{sat::kMagic.size()})
        put_text(out, "");  // the framework comes first
      put_text(out, note);
      block(sat::Block::notes, out);
      block(sat::Block::end, std::string(sizeof(int64_t), '\0'));
    }
  } catch (const std::exception&) {  // then it ends where it is whole
  }
  file_.reset();
}

void SatWriter::close(const Trace& t) {
  std::string out;
  put(out, t.dropped);
  block(sat::Block::end, out);
  if (std::fclose(file_.release()) != 0)
    throw Error(Errc::io, "doctor", path_ + ": cannot write; is the disk full?");
}

}  // namespace saturate::observe
