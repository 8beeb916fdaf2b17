// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/file_uses.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "observe/system/processes.h"

namespace saturate::observe {
namespace {

constexpr int64_t kFewBytes = 64 << 10;     // since the last look: not worth another
constexpr double kManyPerNs = 0.1;          // 100 MB/s of the time that a thread runs
constexpr int64_t kAgainNs = 30'000'000;    // between two looks at one process
constexpr int64_t kRecentNs = 300'000'000;  // how long a file that was seen explains bytes
constexpr int64_t kQuietNs = 300'000'000;   // ends an episode
constexpr size_t kMostPaths = 1'000;        // counted of one name

int64_t field(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  int64_t value = 0;
  if (at != std::string_view::npos)
    std::from_chars(text.data() + at + key.size(), text.data() + text.size(), value);
  return value;
}

int64_t part(int64_t whole, double share) {
  return static_cast<int64_t>(static_cast<double>(whole) * share);
}

}  // namespace

std::string path_pattern(const std::string& path) {
  std::string out;
  for (const char c : path) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !out.empty() && out.back() == '#') continue;
    out += digit ? '#' : c;
  }
  return out;
}

std::string FileUses::name_of(const std::string& path) {
  std::string pattern = path_pattern(path);
  auto at = names_.find(pattern);
  if (at == names_.end() && names_.size() >= kMostNames) {
    pattern = pattern.substr(0, pattern.rfind('/')) + "/*";
    at = names_.find(pattern);
    if (at == names_.end() && names_.size() >= 2 * kMostNames) pattern = "other files";
  }
  Name& name = names_[pattern];
  if (name.first.empty()) name.first = path;
  if (name.paths.size() < kMostPaths) name.paths.insert(path);
  return name.paths.size() == 1 ? name.first : pattern;
}

void FileUses::saw_wait(pid_t process, SpanKind kind, const std::string& path, int64_t now_ns) {
  Process& p = processes_[process];
  (kind == SpanKind::file_write ? p.write_wait : p.read_wait) = {path, now_ns, 1};
}

std::optional<FileUses::Counts> FileUses::counts(pid_t process) {
  const auto text = read_small_file(fmt::format("{}/{}/io", proc_, process), 4096);
  if (!text || text->empty()) return {};
  return Counts{field(*text, "rchar: "), field(*text, "wchar: "), field(*text, "\nread_bytes: ")};
}

void FileUses::touch(HostUse& use, int64_t from_ns, int64_t to_ns) {
  use.first_ns = use.episodes == 0 ? from_ns : std::min(use.first_ns, from_ns);
  if (use.episodes == 0 || from_ns - use.last_ns > kQuietNs) {
    ++use.episodes;
    use.last_start_ns = from_ns;
  }
  use.last_ns = std::max(use.last_ns, to_ns);
}

FileUses::Use& FileUses::use(SpanKind kind, const std::string& name) {
  Use& u = uses_[{kind, name}];
  u.sum.kind = kind;
  u.sum.name = name;
  return u;
}

void FileUses::add_bytes(pid_t process, SpanKind kind, const std::string& path, int64_t bytes,
                         int64_t from_storage, int64_t from_ns, int64_t to_ns) {
  if (bytes <= 0 && from_storage <= 0) return;
  HostUse& u = use(kind, name_of(path)).sum;
  u.bytes += std::max(bytes, from_storage);
  u.storage_bytes += from_storage;
  touch(u, from_ns, to_ns);
  if (!u.storage.empty()) return;
  if (const Mount* mount = open_.mount(process, path)) {
    u.storage = mount->source.starts_with("/") || mount->source.find(':') != std::string::npos
                    ? fmt::format("{} on {}", mount->type, mount->source)
                    : mount->type;
    u.over_network = storage_of(mount->type) == Storage::network;
    u.in_memory = storage_of(mount->type) == Storage::memory;
  }
}

void FileUses::look(pid_t process, int64_t now_ns) {
  Process& p = processes_[process];
  const std::optional<Counts> now = counts(process);
  if (!now) {
    if (refused_.empty() && read_small_file(fmt::format("{}/{}/stat", proc_, process), 64))
      refused_ = "/proc/PID/io of the program's processes may not be read";
    return;
  }
  const Counts moved{now->read - p.counts.read, now->written - p.counts.written,
                     now->from_storage - p.counts.from_storage};
  if (p.begun && moved.read < kFewBytes && moved.written < kFewBytes &&
      moved.from_storage < kFewBytes) {
    p.looked_ns = now_ns;
    return;
  }
  bool readable = true;
  const std::vector<OpenFiles::File> files = open_.files(process, readable);
  if (!readable && refused_.empty())
    refused_ = "/proc/PID/fd of the program's processes may not be read";
  struct Move {
    const OpenFiles::File* file;
    int64_t bytes;
  };
  std::vector<Move> reads, writes;
  int64_t read = 0, written = 0;
  bool rewound = false;  // then nobody knows how far a file went before
  std::map<int64_t, std::pair<std::string, int64_t>> positions;
  for (const OpenFiles::File& f : files) {
    positions[f.fd] = {f.path, f.at.position};
    const auto before = p.positions.find(f.fd);
    const bool known = before != p.positions.end() && before->second.first == f.path;
    const bool back = known && before->second.second > f.at.position;
    const int64_t bytes = f.at.position - (known && !back ? before->second.second : 0);
    rewound = rewound || back;
    if (bytes <= 0) continue;
    // Of a file open for both, the direction in which the process moved more.
    const bool as_write = f.at.writes && (!f.at.reads || moved.written > moved.read);
    (as_write ? writes : reads).push_back({&f, bytes});
    (as_write ? written : read) += bytes;
  }
  const int64_t from_ns = p.looked_ns;
  const auto share_out = [&](const std::vector<Move>& moves, int64_t sum, int64_t counted,
                             int64_t from_storage, SpanKind kind, Recent& recent, Recent& wait) {
    // Positions also jump; no file can have more than was counted.
    const double scale = std::min(
        1.0, static_cast<double>(counted) / static_cast<double>(std::max<int64_t>(1, sum)));
    const int64_t rest = std::max<int64_t>(0, counted - sum);
    const bool waited = now_ns - wait.seen_ns < kRecentNs;
    const Move* most = nullptr;
    for (const Move& m : moves) {
      const double share = static_cast<double>(m.bytes) / static_cast<double>(sum);
      // What came from the storage came for all that was read, the rest included.
      const double storage_share =
          share * (waited && counted > 0
                       ? static_cast<double>(std::min(sum, counted)) / static_cast<double>(counted)
                       : 1.0);
      add_bytes(process, kind, m.file->path, part(m.bytes, scale),
                part(from_storage, storage_share), from_ns, now_ns);
      if (most == nullptr || m.bytes > most->bytes) most = &m;
    }
    if (most != nullptr && counted > 0)
      recent = {most->file->path, now_ns,
                rewound ? 1 : scale * static_cast<double>(sum) / static_cast<double>(counted)};
    if (waited && (rest >= kFewBytes || (moves.empty() && from_storage > 0))) {
      const double share =
          moves.empty() ? 1 : static_cast<double>(rest) / static_cast<double>(counted);
      add_bytes(process, kind, wait.path, rest, part(from_storage, share), from_ns, now_ns);
      if (2 * rest > counted) recent = {wait.path, now_ns, 1};
    }
  };
  if (p.begun) {
    share_out(reads, read, moved.read, moved.from_storage, SpanKind::file_read, p.read,
              p.read_wait);
    share_out(writes, written, moved.written, 0, SpanKind::file_write, p.written, p.write_wait);
  }
  p.begun = true;
  p.counts = *now;
  p.looked_ns = now_ns;
  p.positions = std::move(positions);
}

void FileUses::add_time(SpanKind kind, const std::string& name, pid_t thread,
                        const std::string& thread_name, int64_t start_ns, int64_t end_ns) {
  Use& u = use(kind, name);
  u.sum.waited_ns += end_ns - start_ns;
  touch(u.sum, start_ns, end_ns);
  auto& [ns, called] = u.threads[thread];
  ns += end_ns - start_ns;
  called = thread_name;
}

std::optional<FileUses::Copied> FileUses::copied(pid_t process, int64_t read, int64_t written,
                                                 int64_t run_ns, int64_t now_ns) {
  if (read < kFewBytes && written < kFewBytes) return {};
  Process& p = processes_[process];
  const bool write = written > read;
  const Recent& recent = write ? p.written : p.read;
  const auto explained = [&] {
    return now_ns - recent.seen_ns <= kRecentNs && recent.explains >= 0.5;
  };
  if (!explained() && now_ns - p.looked_ns >= kAgainNs << std::min(p.unexplained, 3)) {
    look(process, now_ns);
    p.unexplained = explained() ? 0 : p.unexplained + 1;
  }
  if (!explained()) return {};
  return Copied{write ? SpanKind::file_write : SpanKind::file_read, name_of(recent.path),
                write && static_cast<double>(written) >= kManyPerNs * static_cast<double>(run_ns)};
}

void FileUses::forget(pid_t process) {
  processes_.erase(process);
  open_.forget(process);
}

std::vector<HostUse> FileUses::uses() const {
  std::map<std::pair<SpanKind, std::string>, Use> joined;
  for (const auto& [key, u] : uses_) {
    // What was summed up under the first path of a name that later stood for several joins it.
    std::string name = key.second;
    const auto pattern = names_.find(path_pattern(name));
    const bool several = pattern != names_.end() && pattern->second.paths.size() > 1;
    if (several && pattern->second.first == name) name = pattern->first;
    const auto [at, fresh] = joined.try_emplace({key.first, name}, u);
    HostUse& sum = at->second.sum;
    sum.name = name;
    if (several) {
      sum.example = pattern->second.first;
      sum.files = static_cast<int64_t>(pattern->second.paths.size());
    }
    if (fresh) continue;
    if (sum.storage.empty()) {
      sum.storage = u.sum.storage;
      sum.over_network = u.sum.over_network;
      sum.in_memory = u.sum.in_memory;
    }
    sum.bytes += u.sum.bytes;
    sum.storage_bytes += u.sum.storage_bytes;
    sum.waited_ns += u.sum.waited_ns;
    sum.episodes += u.sum.episodes;
    sum.first_ns = std::min(sum.first_ns, u.sum.first_ns);
    sum.last_ns = std::max(sum.last_ns, u.sum.last_ns);
    sum.last_start_ns = std::max(sum.last_start_ns, u.sum.last_start_ns);
    for (const auto& [thread, time] : u.threads) {
      at->second.threads[thread].first += time.first;
      at->second.threads[thread].second = time.second;
    }
  }
  std::vector<HostUse> out;
  for (auto& [key, u] : joined) {
    int64_t most = -1;
    for (const auto& [thread, time] : u.threads) {
      if (time.first <= most) continue;
      most = time.first;
      u.sum.thread = fmt::format("{} ({})", time.second, thread);
    }
    u.sum.threads = static_cast<int64_t>(u.threads.size());
    out.push_back(u.sum);
  }
  return out;
}

}  // namespace saturate::observe
