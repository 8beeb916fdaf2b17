// SPDX-License-Identifier: Apache-2.0
// What the descriptors of other processes lead to, as /proc shows it: files with their positions and
// the file systems they lie on, sockets with their peers.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::observe {

struct Mount {
  std::string point, type, source;
};
// Of /proc/PID/mountinfo; blanks in paths are decoded.
std::vector<Mount> parse_mounts(std::string_view mountinfo);
// The mount that `path` lies on, or null.
const Mount* mount_of(const std::vector<Mount>& mounts, std::string_view path);
enum class Storage : uint8_t { disk, network, memory };
// By the type of the file system: nfs, fuse.sshfs, tmpfs, ...
Storage storage_of(std::string_view type);

// Peers by the inode of the socket ("10.0.0.7:443"), of /proc/PID/net/tcp and the like. A socket that
// listens has "clients on :PORT".
void parse_sockets(std::string_view table, std::map<uint64_t, std::string>& peers);

struct FilePosition {
  int64_t position = 0;
  bool reads = true, writes = false;
};
std::optional<FilePosition> parse_fdinfo(std::string_view text);

enum class TargetKind : uint8_t { file, peer, local_socket, pipe, device, other, gone };
struct Target {
  TargetKind kind = TargetKind::gone;
  std::string name;  // path, or peer
};

class OpenFiles {
 public:
  // Files below `own_folder` are not the program's: the capture that is written in its process.
  OpenFiles(std::string proc, std::function<int64_t()> clock, const std::string& own_folder = "")
      : proc_(std::move(proc)),
        clock_(std::move(clock)),
        own_(own_folder.empty() ? "" : own_folder + "/") {}

  Target target(pid_t process, int64_t fd);
  struct File {
    int64_t fd;
    std::string path;
    FilePosition at;
  };
  // Open regular files. `readable` is false when this user may not look.
  std::vector<File> files(pid_t process, bool& readable) const;
  // Descriptors that an epoll descriptor watches.
  std::vector<int64_t> watched(pid_t process, int64_t fd) const;
  // Empty when not known. Mounts are read once a process.
  const Mount* mount(pid_t process, std::string_view path);
  void forget(pid_t process) { mounts_.erase(process); }

 private:
  std::string proc_;
  std::function<int64_t()> clock_;
  std::string own_;
  std::map<uint64_t, std::string> peers_;
  int64_t peers_ns_ = INT64_MIN / 2;
  std::map<pid_t, std::vector<Mount>> mounts_;
};

}  // namespace saturate::observe
