// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/open_files.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "observe/system/processes.h"

namespace saturate::observe {
namespace {

constexpr int64_t kPeersEveryNs = 200'000'000;  // a machine's table of sockets may be long

std::vector<std::string_view> words(std::string_view line) {
  std::vector<std::string_view> found;
  for (size_t at = 0; (at = line.find_first_not_of(" \t", at)) != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(" \t", at), line.size());
    found.push_back(line.substr(at, end - at));
    at = end;
  }
  return found;
}

template <class Take>
void each_line(std::string_view text, const Take& take) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    take(text.substr(at, end - at));
    at = end + 1;
  }
}

template <class T>
bool to_number(std::string_view text, T& value, int base = 10) {
  return std::from_chars(text.data(), text.data() + text.size(), value, base).ec == std::errc{};
}

// Blanks and the like stand as three octal digits behind a backslash.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '\\' && i + 3 < text.size() && to_number(text.substr(i + 1, 3), code, 8)) {
      out += static_cast<char>(code);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// "0100007F:1F90": words of 32 bits as this machine keeps them, and the port.
std::optional<std::string> address_of(std::string_view hex, uint16_t& port) {
  const size_t colon = hex.find(':');
  if (colon == std::string_view::npos || !to_number(hex.substr(colon + 1), port, 16)) return {};
  if (colon != 8 && colon != 32) return {};
  std::array<uint32_t, 4> raw{};
  for (size_t i = 0; i < colon / 8; ++i)
    if (!to_number(hex.substr(8 * i, 8), raw[i], 16)) return {};
  const bool mapped = colon == 32 && raw[0] == 0 && raw[1] == 0 && raw[2] == htonl(0xFFFF);
  char text[INET6_ADDRSTRLEN];
  if (colon == 8 || mapped) {
    if (inet_ntop(AF_INET, mapped ? &raw[3] : &raw[0], text, sizeof text) == nullptr) return {};
    return std::string(text);
  }
  if (inet_ntop(AF_INET6, raw.data(), text, sizeof text) == nullptr) return {};
  return fmt::format("[{}]", text);
}

std::string link_of(const std::string& path) {
  char target[4096];
  const ssize_t n = readlink(path.c_str(), target, sizeof target);
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : "";
}

bool is_file(std::string_view target) {
  return target.starts_with("/") && !target.starts_with("/proc/") && !target.starts_with("/sys/") &&
         (!target.starts_with("/dev/") || target.starts_with("/dev/shm/"));
}

}  // namespace

std::vector<Mount> parse_mounts(std::string_view mountinfo) {
  std::vector<Mount> mounts;
  each_line(mountinfo, [&](std::string_view line) {
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) return;
    const auto before = words(line.substr(0, dash)), after = words(line.substr(dash + 3));
    if (before.size() < 5 || after.size() < 2) return;
    mounts.push_back({decoded(before[4]), std::string(after[0]), decoded(after[1])});
  });
  return mounts;
}

const Mount* mount_of(const std::vector<Mount>& mounts, std::string_view path) {
  const Mount* best = nullptr;
  for (const Mount& m : mounts) {
    const bool below =
        path.starts_with(m.point) &&
        (m.point == "/" || path.size() == m.point.size() || path[m.point.size()] == '/');
    // Of two at one place the later lies over the other.
    if (below && (best == nullptr || m.point.size() >= best->point.size())) best = &m;
  }
  return best;
}

Storage storage_of(std::string_view type) {
  constexpr std::string_view kNetwork[] = {
      "nfs",     "cifs", "smb",    "9p",   "ceph",     "lustre",   "beegfs", "gpfs",
      "gluster", "afs",  "wekafs", "fuse", "virtiofs", "orangefs", "ocfs2",  "gfs2"};
  if (type == "tmpfs" || type == "ramfs" || type == "hugetlbfs" || type == "devtmpfs")
    return Storage::memory;
  if (type == "fuseblk") return Storage::disk;
  return std::any_of(std::begin(kNetwork), std::end(kNetwork),
                     [&](std::string_view n) { return type.starts_with(n); })
             ? Storage::network
             : Storage::disk;
}

void parse_sockets(std::string_view table, std::map<uint64_t, std::string>& peers) {
  constexpr std::string_view kListens = "0A";
  each_line(table, [&](std::string_view line) {
    const auto w = words(line);
    uint64_t inode = 0;
    uint16_t port = 0;
    if (w.size() < 10 || !to_number(w[9], inode) || inode == 0) return;
    const bool listens = w[3] == kListens;
    const auto address = address_of(listens ? w[1] : w[2], port);
    if (!address) return;
    peers[inode] =
        listens ? fmt::format("clients on :{}", port) : fmt::format("{}:{}", *address, port);
  });
}

std::optional<FilePosition> parse_fdinfo(std::string_view text) {
  FilePosition p;
  bool found = false;
  each_line(text, [&](std::string_view line) {
    uint32_t flags = 0;
    const auto w = words(line);
    if (w.size() != 2) return;
    if (w[0] == "pos:") found = to_number(w[1], p.position);
    if (w[0] == "flags:" && to_number(w[1], flags, 8)) {
      p.writes = (flags & O_ACCMODE) != O_RDONLY;
      p.reads = (flags & O_ACCMODE) != O_WRONLY;
    }
  });
  if (!found) return {};
  return p;
}

Target OpenFiles::target(pid_t process, int64_t fd) {
  const std::string link = link_of(fmt::format("{}/{}/fd/{}", proc_, process, fd));
  uint64_t inode = 0;
  if (link.empty()) return {};
  if (is_file(link)) return {TargetKind::file, link};
  if (link.starts_with("pipe:")) return {TargetKind::pipe, ""};
  if (link.starts_with("/dev/")) return {TargetKind::device, link};
  if (!link.starts_with("socket:[") || !to_number(std::string_view(link).substr(8), inode))
    return {TargetKind::other, link};
  auto peer = peers_.find(inode);
  if (const int64_t now = clock_(); peer == peers_.end() && now - peers_ns_ >= kPeersEveryNs) {
    peers_ns_ = now;
    peers_.clear();
    for (const char* table : {"tcp", "tcp6", "udp", "udp6"})
      if (const auto text = read_small_file(fmt::format("{}/{}/net/{}", proc_, process, table)))
        parse_sockets(*text, peers_);
    peer = peers_.find(inode);
  }
  if (peer == peers_.end()) return {TargetKind::local_socket, ""};
  return {TargetKind::peer, peer->second};
}

std::vector<OpenFiles::File> OpenFiles::files(pid_t process, bool& readable) const {
  std::vector<File> found;
  const std::string folder = fmt::format("{}/{}/", proc_, process);
  DIR* dir = opendir((folder + "fd").c_str());
  readable = dir != nullptr;
  if (dir == nullptr) return found;
  while (const dirent* entry = readdir(dir)) {
    int64_t fd = 0;
    if (!to_number(std::string_view(entry->d_name), fd)) continue;
    std::string path = link_of(folder + "fd/" + entry->d_name);
    if (!is_file(path) || (!own_.empty() && path.starts_with(own_))) continue;
    const auto info = read_small_file(folder + "fdinfo/" + entry->d_name, 4096);
    const auto at = info ? parse_fdinfo(*info) : std::nullopt;
    if (at) found.push_back({fd, std::move(path), *at});
  }
  closedir(dir);
  return found;
}

std::vector<int64_t> OpenFiles::watched(pid_t process, int64_t fd) const {
  std::vector<int64_t> found;
  const auto info = read_small_file(fmt::format("{}/{}/fdinfo/{}", proc_, process, fd), 65536);
  if (!info) return found;
  each_line(*info, [&](std::string_view line) {
    const auto w = words(line);
    int64_t watched_fd = 0;
    if (w.size() > 1 && w[0] == "tfd:" && to_number(w[1], watched_fd)) found.push_back(watched_fd);
  });
  return found;
}

const Mount* OpenFiles::mount(pid_t process, std::string_view path) {
  const auto [at, fresh] = mounts_.try_emplace(process);
  if (fresh)
    if (const auto text = read_small_file(fmt::format("{}/{}/mountinfo", proc_, process)))
      at->second = parse_mounts(*text);
  return mount_of(at->second, path);
}

}  // namespace saturate::observe
