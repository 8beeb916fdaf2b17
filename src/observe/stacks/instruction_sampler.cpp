// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/instruction_sampler.h"

#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace saturate::observe {
namespace {

constexpr size_t kPages = 2;  // the head, and records for about 150 samples: 0.3 s

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// What the kernel writes with the fields that were asked for.
struct Record {
  perf_event_header header;
  uint64_t address;
  uint64_t time_ns;
};

}  // namespace

std::unique_ptr<InstructionSampler> InstructionSampler::open(pid_t thread, int& error) {
  perf_event_attr wanted{};
  wanted.size = sizeof wanted;
  wanted.type = PERF_TYPE_SOFTWARE;
  wanted.config = PERF_COUNT_SW_TASK_CLOCK;
  wanted.sample_period = static_cast<uint64_t>(kPeriodNs);
  wanted.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TIME;
  wanted.exclude_kernel = 1;
  wanted.exclude_hv = 1;
  wanted.use_clockid = 1;
  wanted.clockid = CLOCK_MONOTONIC;
  const long file = syscall(SYS_perf_event_open, &wanted, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
  if (file < 0) {
    error = errno;
    return nullptr;
  }
  void* pages = mmap(nullptr, kPages * page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                     static_cast<int>(file), 0);
  if (pages == MAP_FAILED) {
    error = errno;
    close(static_cast<int>(file));
    return nullptr;
  }
  return std::unique_ptr<InstructionSampler>(new InstructionSampler(static_cast<int>(file), pages));
}

InstructionSampler::~InstructionSampler() {
  munmap(pages_, kPages * page_bytes());
  close(file_);
}

std::optional<InstructionSampler::Point> InstructionSampler::last() {
  auto* head = static_cast<perf_event_mmap_page*>(pages_);
  const char* records = static_cast<const char*>(pages_) + page_bytes();
  const uint64_t room = (kPages - 1) * page_bytes();
  const uint64_t end = std::atomic_ref(head->data_head).load(std::memory_order_acquire);
  uint64_t at = head->data_tail;
  while (at < end) {
    perf_event_header header{};  // records are multiples of eight bytes: never cut by the end
    std::memcpy(&header, records + at % room, sizeof header);
    if (header.size < sizeof header) break;
    if (header.type == PERF_RECORD_SAMPLE && header.size == sizeof(Record)) {
      uint64_t fields[2];
      for (uint64_t i = 0; i < 2; ++i)
        std::memcpy(&fields[i], records + (at + sizeof header + 8 * i) % room, 8);
      last_ = Point{static_cast<int64_t>(fields[1]), fields[0]};
    }
    at += header.size;
  }
  // What was read may be written over from here on; a full room only loses samples.
  std::atomic_ref(head->data_tail).store(end, std::memory_order_release);
  return last_;
}

}  // namespace saturate::observe
