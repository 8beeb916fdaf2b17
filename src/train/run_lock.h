// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace saturate::train {

/// Holds a run folder for one process, for as long as the object lives. The kernel releases it when
/// the process ends, however it ends, so no stale lock can remain. With the object the file goes, and a
/// folder that was made for it and is still empty. Only one rank of a run takes it.
class RunLock {
 public:
  // Creates the folder when it is missing. Errors: io; invalid_argument with the pid and host of
  // the process that uses the folder.
  explicit RunLock(const std::string& run_folder);
  ~RunLock();
  RunLock(RunLock&& o) noexcept;
  RunLock& operator=(RunLock&&) = delete;

  // Whether the folder still is the one that was locked: false after it was deleted or moved.
  bool in_place() const noexcept;
  // Whether the folder was missing before.
  bool made_folder() const noexcept { return made_folder_; }

 private:
  std::string path_;  // of the lock file
  int fd_ = -1;
  bool made_folder_ = false;
};

}  // namespace saturate::train
