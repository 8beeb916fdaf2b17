// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/cut_captures.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "observe/read/input.h"
#include "observe/read/sat_format.h"
#include "observe/read/sat_reader.h"
#include "observe/system/processes.h"

namespace saturate::observe {
namespace {

struct State {
  int64_t whole = 0;  // bytes up to the end of the last whole block
  int64_t torn = 0;   // and after that
  bool closed = false, has_notes = false;
};

// Nothing for a file that is no capture. Reads the heads of blocks alone.
std::optional<State> state_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(file.tellg());
  file.seekg(0);
  char magic[sat::kMagic.size()];
  if (!file.read(magic, sizeof magic) || std::string_view(magic, sizeof magic) != sat::kMagic)
    return {};
  State s{sizeof magic};
  for (sat::Header header; file.seekg(s.whole) && s.whole + int64_t{sizeof header} <= size &&
                           file.read(reinterpret_cast<char*>(&header), sizeof header);) {
    const int64_t next = s.whole + int64_t{sizeof header} + header.bytes;
    if (next > size || header.bytes > sat::kMaxPayload) break;
    s.whole = next;
    s.closed = s.closed || header.kind == static_cast<uint32_t>(sat::Block::end);
    s.has_notes = s.has_notes || header.kind == static_cast<uint32_t>(sat::Block::notes);
  }
  s.torn = size - s.whole;
  return s;
}

void put_text(std::string& out, std::string_view text) {
  const auto size = static_cast<uint32_t>(text.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
}

std::string how(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  return fmt::format("ended without notice, with exit code {}", WEXITSTATUS(status));
}

// Of the last operation that has a record; 0 where none has, or the file cannot be read.
int64_t last_op_end_ns(const std::string& path) {
  int64_t last = 0;
  try {
    const auto capture = read_sat(open_input(path), kSatWindowRecords, SatPauses::kept);
    for (bool more = true; more; capture->trace().ops.clear()) {
      more = capture->read_window();
      for (const DeviceOp& op : capture->trace().ops) last = std::max(last, op.end_ns);
    }
  } catch (const Error&) {  // the report will say what is wrong with it
  }
  return last;
}

void append(const std::string& path, const State& s, const std::string& note) {
  std::string payload;
  if (!s.has_notes) put_text(payload, "");  // the framework comes first
  put_text(payload, note);
  const auto kind = static_cast<uint32_t>(sat::Block::notes);
  const sat::Header header{kind, static_cast<uint32_t>(payload.size()),
                           sat::checksum(kind, payload.data(), payload.size())};
  std::error_code error;
  if (s.torn > 0) std::filesystem::resize_file(path, static_cast<uintmax_t>(s.whole), error);
  if (error) return;
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(payload.data(), static_cast<std::streamsize>(payload.size()));
}

}  // namespace

void complete_cut_captures(const std::string& folder, pid_t root, int status, int64_t ended_ns) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() != ".sat" || path.filename() == "host.sat") continue;
    const pid_t process = std::atoi(path.filename().c_str());
    const std::optional<ProcessTimes> times = ProcessReader().process(process);
    if (times && times->state != 'Z' && times->state != 'X') continue;
    struct stat file {};
    const std::optional<State> s = state_of(path);
    if (!s || s->closed || stat(path.c_str(), &file) != 0) continue;
    std::string note = fmt::format("process {} ", process);
    if (process == root) {
      const int64_t written_ns =
          int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
      note += fmt::format("{}, {:.2f} s after its last records were written", how(status),
                          1e-9 * static_cast<double>(std::max<int64_t>(0, ended_ns - written_ns)));
      if (const int64_t last_ns = last_op_end_ns(path.string()); last_ns > 0)
        note += fmt::format(
            " and {:.2f} s after the end of the last operation that has one, which is how much is "
            "missing",
            1e-9 * static_cast<double>(std::max<int64_t>(0, ended_ns - last_ns)));
    } else {
      note += "ended without notice (killed, it may be)";
    }
    note +=
        ": what the device finished in about the last 0.1 s, or beside work that was under way, is "
        "lost";
    if (s->torn > 0)
      note += fmt::format("; {} bytes of a block that was not whole are left out", s->torn);
    append(path, *s, note);
  }
}

}  // namespace saturate::observe
