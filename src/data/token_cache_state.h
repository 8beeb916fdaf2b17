// SPDX-License-Identifier: Apache-2.0
// What a token cache and the thread that makes it share.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/interrupt.h"
#include "data/mapped_file.h"
#include "data/token_cache.h"

namespace saturate::data {

// A file that is there from its first byte to its last.
struct WholeCache {
  // Errors: io. Checks trailer and sizes.
  WholeCache(const std::string& path, uint64_t key);
  MappedFile file;
  CacheStats head, stats;
  int64_t id_bytes = 0, tokens = 0, index_offset = 0;
};

// A file descriptor that reads at any place; -1 before open().
class ReadAt {
 public:
  ~ReadAt();
  void open(const std::string& path);  // Errors: io
  // Errors: io, also when the file has fewer bytes.
  void read(void* dst, size_t bytes, int64_t at) const;

 private:
  std::string path_;
  int fd_ = -1;
};

struct TokenCache::State {
  ~State() {
    stop = true;
    if (maker.joinable()) maker.join();
  }

  std::string path;
  // The whole cache, once there is one. Release by the maker after `owned_whole` was set.
  std::atomic<const WholeCache*> whole{nullptr};
  std::unique_ptr<const WholeCache> owned_whole;

  // While it is made: ids and entries lie in two files that only grow. Set by the maker before the
  // first count is published, and not changed after.
  ReadAt ids, index;
  int64_t id_bytes = 0;

  // Pairs and tokens that can be read; they never shrink.
  std::atomic<int64_t> pairs{0}, tokens{0};
  std::atomic<int64_t> lines_read{0};  // for progress
  std::atomic<bool> failed{false};     // `failure` is set
  std::atomic<bool> waits_end{false}, stop{false};
  Interrupt interrupt;  // checked by what waits

  // `pairs`, `tokens`, `whole` and `failed` change under the mutex, so that no waiter misses it.
  std::mutex mutex;
  std::condition_variable changed;
  bool head_known = false;  // then `head` and `continues` stay as they are
  CacheStats head;
  bool continues = false;
  BadLines bad;
  std::exception_ptr failure;

  std::thread maker;

  // Waits until `ready()`, under the mutex; checks the interrupt ten times a second. `check` is
  // called as often, without the mutex. Errors: `failure`; Interrupted.
  template <class Ready, class Check>
  void await(const Ready& ready, const Check& check) {
    std::unique_lock lock(mutex);
    while (!ready()) {
      if (failure) std::rethrow_exception(failure);
      if (waits_end) throw Interrupted();
      interrupt.check();
      changed.wait_for(lock, std::chrono::milliseconds(100));
      lock.unlock();
      check();
      lock.lock();
    }
  }
};

}  // namespace saturate::data
