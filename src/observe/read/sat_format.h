// SPDX-License-Identifier: Apache-2.0
// The capture format of this program (.sat): appended to while the watched program runs, readable
// when that ends in the middle.
//
//   file    "SATCAP02", then blocks
//   block   u32 kind, u32 payload bytes, u64 XXH3 of the payload seeded by the kind, payload
//
// Little endian. Kinds: names (texts, each u32 length and bytes, numbered from 1 on through the
// file), streams, threads, devices (tables, numbered from 0 on), operations, calls, spans (records
// of fixed size, in order of time within a block up to a flush's disorder), notes, end. A reader
// passes over kinds it does not know.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace saturate::observe::sat {

constexpr std::string_view kMagic("SATCAP02"), kFamily("SATCAP");  // the latter of any version
constexpr std::string_view kUnseededMagic("SATCAP01");  // the same, with checksums without a seed
constexpr uint32_t kMaxPayload = 64u << 20;

enum class Block : uint32_t {
  names = 1,
  streams = 2,
  threads = 3,
  devices = 4,
  ops = 5,
  calls = 6,
  spans = 7,
  notes = 8,       // texts; the first of the file is the framework's name
  flush = 9,       // all records that end before u64 ns have been written
  end = 10,        // u64 records dropped; closed in order
  pauses = 11,     // times without records, before any record that is later
  cost = 12,       // f64 by which the program was slower while it was recorded
  memory = 13,     // samples of what the program had taken of each device's memory
  copies = 14,     // rates on the machine: 4 f64 in the order of CopyRates, then its two texts
  host_uses = 18,  // what the program did with files, peers and locks, of the whole run
  stacks = 20,     // a table like names: frames with those that called them, numbered from 0 on
  samples = 21,    // of stacks
  parents = 22,    // pairs of a process and the one that started it
};

struct Header {
  uint32_t kind, bytes;
  uint64_t checksum;
};
uint64_t checksum(uint32_t seed, const void* payload, size_t bytes);

struct StreamRecord {
  uint32_t process, device, context, unused;
  uint64_t stream;
};
struct ThreadRecord {
  uint64_t process, thread;
};
struct OpRecord {
  int64_t start_ns, duration_ns, correlation, size;
  uint32_t name, stream, block_threads;
  uint8_t kind, copy, memory, unused;
};
struct CallRecord {
  int64_t start_ns, duration_ns, correlation;
  uint32_t name, thread;
};
struct SpanRecord {
  int64_t start_ns, duration_ns;
  uint32_t name, thread, kind, unused;
};
struct MemoryRecord {
  int64_t time_ns, allocated, reserved;
  uint32_t device, unused;
};
struct StackRecord {
  uint32_t caller, function, file, line, text;  // caller: a number that came before, or all ones
};
struct SampleRecord {
  int64_t start_ns, duration_ns;
  uint32_t count, thread, stack, wait, holder, holder_stack, state, unused;
};
struct ParentRecord {
  uint32_t process, parent;
};
static_assert(sizeof(StackRecord) == 20 && sizeof(SampleRecord) == 48);
// Followed by four texts: name, example, storage, thread.
struct HostUseRecord {
  uint32_t kind, flags;  // SpanKind; 1 over a network, 2 in memory
  int64_t files, bytes, storage_bytes, waited_ns, threads, episodes, first_ns, last_ns,
      last_start_ns;
};
static_assert(sizeof(HostUseRecord) == 80);
struct PauseRecord {
  int64_t start_ns, end_ns;
};
static_assert(sizeof(PauseRecord) == 16 && sizeof(MemoryRecord) == 32);
static_assert(sizeof(Header) == 16 && sizeof(StreamRecord) == 24 && sizeof(ThreadRecord) == 16);
static_assert(sizeof(OpRecord) == 48 && sizeof(CallRecord) == 32 && sizeof(SpanRecord) == 32);

}  // namespace saturate::observe::sat
