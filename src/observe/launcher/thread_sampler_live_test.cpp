// SPDX-License-Identifier: Apache-2.0
// Real child processes that wait for one thing each; what the sampler says of them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "observe/launcher/thread_sampler.h"

namespace saturate::observe {
namespace {

using std::chrono::milliseconds;
constexpr int64_t kMs = 1'000'000;

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

struct Seen {
  Trace trace;
  std::vector<HostUse> uses;
  std::vector<std::string> notes;
  int64_t run_ns = 0;  // of the child, by the kernel: tests must hold on a machine that is busy
  // Of the spans of a kind whose name has `part` in it.
  int64_t ns(SpanKind kind, const std::string& part) const {
    return std::accumulate(
        trace.spans.begin(), trace.spans.end(), int64_t{0}, [&](int64_t sum, const HostSpan& s) {
          const bool is = s.kind == kind && trace.names[s.name].find(part) != std::string::npos;
          return sum + (is ? s.end_ns - s.start_ns : 0);
        });
  }
  const HostUse* use(SpanKind kind, const std::string& name) const {
    for (const HostUse& u : uses)
      if (u.kind == kind && u.name == name) return &u;
    return nullptr;
  }
};

// Samples a child that does `work` until it ends.
Seen watch(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  ThreadSampler sampler(child, now_ns);
  int status = 0;
  rusage used{};
  while (wait4(child, &status, WNOHANG, &used) == 0) {
    sampler.sample();
    std::this_thread::sleep_for(milliseconds(10));
  }
  sampler.finish();
  Seen seen;
  sampler.take_spans(seen.trace);
  seen.uses = sampler.uses();
  seen.notes = sampler.summary();
  for (const timeval& t : {used.ru_utime, used.ru_stime})
    seen.run_ns += int64_t{t.tv_sec} * 1'000'000'000 + int64_t{t.tv_usec} * 1'000;
  return seen;
}

// A file on a disk, if there is one for temporary files.
class DiskFile {
 public:
  explicit DiskFile(const char* name) {
    folder_ = (std::filesystem::temp_directory_path() / "saturate-test-XXXXXX").string();
    if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder " + folder_);
    path_ = folder_ + "/" + name;
  }
  ~DiskFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  const std::string& path() const { return path_; }
  bool on_disk() const {
    struct statfs s {};
    constexpr int64_t kTmpfs = 0x01021994, kOverlay = 0x794c7630;
    return statfs(folder_.c_str(), &s) == 0 && s.f_type != kTmpfs && s.f_type != kOverlay;
  }

 private:
  std::string folder_, path_;
};

TEST(LiveWaits, AMutexHeldByAnotherThread) {
  Seen seen;
  // A machine that is busy looks seldom, or starts the second thread late: then longer ones.
  for (int64_t hold_ms = 1'000; hold_ms <= 4'000; hold_ms *= 2) {
    seen = watch([hold_ms] {
      static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
      pthread_mutex_lock(&mutex);
      pthread_setname_np(pthread_self(), "prefetch");
      std::thread waits([] {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
      });
      std::this_thread::sleep_for(milliseconds(hold_ms));
      pthread_mutex_unlock(&mutex);
      waits.join();
    });
    if (seen.ns(SpanKind::lock, "(prefetch)") >= 200 * kMs &&
        seen.ns(SpanKind::blocked, "sleep") >= 400 * kMs && seen.uses.size() == 1)
      break;
  }
  EXPECT_GE(seen.ns(SpanKind::lock, "(prefetch)"), 200 * kMs);  // found within 200 ms
  EXPECT_GE(seen.ns(SpanKind::blocked, "sleep"), 400 * kMs);
  ASSERT_EQ(seen.uses.size(), 1u);
  EXPECT_EQ(seen.uses[0].kind, SpanKind::lock);
}

TEST(LiveWaits, APipe) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::thread writer([&] {
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(write(ends[1], "x", 1), 1);
  });
  const Seen seen = watch([&] {
    char c = 0;
    if (read(ends[0], &c, 1) != 1) _exit(1);
  });
  writer.join();
  close(ends[0]);
  close(ends[1]);
  EXPECT_GE(seen.ns(SpanKind::blocked, "a pipe"), 200 * kMs);
}

TEST(LiveWaits, ASlowServer) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::thread server([&] {
    const int client = accept(listener, nullptr, nullptr);
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_EQ(send(client, "x", 1, 0), 1);
    close(client);
  });
  const Seen seen = watch([&] {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    char c = 0;
    if (connect(s, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) _exit(1);
    if (recv(s, &c, 1, 0) != 1) _exit(1);
  });
  server.join();
  close(listener);
  const std::string peer = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_GE(seen.ns(SpanKind::network, peer), 200 * kMs);
  EXPECT_NE(seen.use(SpanKind::network, peer), nullptr);
}

// Each write on the disk before the next.
TEST(LiveWaits, ACheckpointThatIsSynced) {
  const DiskFile file("model.pt");
  const std::string path = file.path();
  const Seen seen = watch([&] {
    const std::string block(4 << 20, 'x');
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    for (const int64_t end = now_ns() + 800 * kMs; now_ns() < end;) {
      if (write(fd, block.data(), block.size()) < 0 || fsync(fd) != 0) _exit(1);
    }
  });
  const HostUse* use = seen.use(SpanKind::file_write, path);
  ASSERT_NE(use, nullptr);
  EXPECT_GE(use->bytes, 4 << 20);
  EXPECT_EQ(use->threads, 1);
  EXPECT_GE(2 * seen.ns(SpanKind::file_write, path), seen.run_ns);
}

TEST(LiveWaits, AFileThatIsNotInThePageCache) {
  const DiskFile file("train.bin");
  if (!file.on_disk()) GTEST_SKIP() << "the folder for temporary files is not on a disk";
  const std::string path = file.path();
  const Seen seen = watch([&] {
    std::string block(1 << 20, 'x');
    int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 32; ++i)
      if (write(fd, block.data(), block.size()) < 0) _exit(1);
    fsync(fd);
    close(fd);
    fd = open(path.c_str(), O_RDONLY);
    for (const int64_t end = now_ns() + 1'000 * kMs; now_ns() < end;) {
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      lseek(fd, 0, SEEK_SET);
      while (read(fd, block.data(), block.size()) > 0) {
      }
    }
  });
  const HostUse* use = seen.use(SpanKind::file_read, path);
  ASSERT_NE(use, nullptr);
  EXPECT_GE(use->bytes, 32 << 20);
  EXPECT_GE(use->storage_bytes, use->bytes / 2);
  EXPECT_GE(2 * seen.ns(SpanKind::file_read, path), seen.run_ns);
}

// Written to the page cache alone: the thread runs in the kernel, and is not asleep.
TEST(LiveWaits, WritingWithoutWaitingIsWritingToo) {
  const DiskFile file("model.pt");
  const std::string path = file.path();
  const Seen seen = watch([&] {
    const std::string block(1 << 20, 'x');
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    int64_t at = 0;
    for (const int64_t end = now_ns() + 600 * kMs; now_ns() < end; ++at) {
      // Rarely: bytes are known for a file's by how far its position came, and one that went back tells nothing.
      if (at % 1024 == 1023) lseek(fd, 0, SEEK_SET);
      if (write(fd, block.data(), block.size()) < 0) _exit(1);
    }
  });
  EXPECT_GE(2 * seen.ns(SpanKind::file_write, path), seen.run_ns);
}

TEST(LiveWaits, ALongComputationIsNone) {
  const Seen seen = watch([] {
    volatile int64_t n = 0;
    for (const int64_t end = now_ns() + 200 * kMs; now_ns() < end;) n = n + 1;
  });
  EXPECT_TRUE(seen.uses.empty());
}

}  // namespace
}  // namespace saturate::observe
