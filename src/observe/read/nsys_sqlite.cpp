// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "observe/read/file_sqlite.h"
#include "observe/read/nsys.h"

namespace saturate::observe {
namespace {

// A serialised id: machine, process and thread, of which each takes 24 bits but the first.
uint32_t process_of(int64_t global) { return static_cast<uint32_t>((global >> 24) & 0xFFFFFF); }
uint64_t thread_of(int64_t global) { return static_cast<uint64_t>(global & 0xFFFFFF); }

// ENUM_CUDA_MEM_KIND
HostMemory host_memory(int64_t id) {
  return id == 0 ? HostMemory::pageable : id == 1 ? HostMemory::pinned : HostMemory::unknown;
}

class NsysReader {
 public:
  explicit NsysReader(const std::string& path) : path_(path), file_(path) {
    trace_.source = "Nsight Systems export";
  }

  Trace read() {
    if (!file_.has_table("StringIds") || !(file_.has_table("CUPTI_ACTIVITY_KIND_KERNEL") ||
                                           file_.has_table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")))
      throw Error(Errc::invalid_argument, "doctor",
                  path_ +
                      ": an SQLite file without the kernels of Nsight Systems; record with "
                      "--trace=cuda,nvtx,osrt "
                      "and export with nsys export --type sqlite");
    read_strings();
    read_devices();
    read_ops("CUPTI_ACTIVITY_KIND_KERNEL", OpKind::kernel, "");
    read_ops("CUPTI_ACTIVITY_KIND_MEMCPY", OpKind::copy, "copy");
    read_ops("CUPTI_ACTIVITY_KIND_MEMSET", OpKind::fill, "fill");
    read_ops("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", OpKind::graph, "graph");
    read_calls("CUPTI_ACTIVITY_KIND_RUNTIME");
    read_calls("CUPTI_ACTIVITY_KIND_DRIVER");
    read_ranges();
    read_waits();
    read_overhead("PROFILER_OVERHEAD");
    read_overhead("CUPTI_ACTIVITY_KIND_OVERHEAD");
    if (trace_.calls.empty())
      trace_.notes.push_back(
          "no CUDA calls in the export: idle time cannot be explained; record with --trace=cuda");
    trace_.sort();
    return std::move(trace_);
  }

 private:
  void read_strings() {
    SqliteFile::Rows rows(file_, "StringIds", {"id", "value"});
    while (rows.next()) names_[rows.integer(0)] = trace_.names.add(rows.text(1).substr(0, 4096));
  }

  uint32_t name(int64_t id) const {
    const auto at = names_.find(id);
    return at == names_.end() ? 0 : at->second;
  }

  void read_devices() {
    if (!file_.has_table("TARGET_INFO_GPU")) return;
    SqliteFile::Rows rows(file_, "TARGET_INFO_GPU", {"id", "name", "smCount"});
    while (rows.next()) {
      const int64_t id = rows.integer(0, -1);
      if (id >= 0 && id < 1024)
        trace_.devices[static_cast<uint32_t>(id)] = {std::string(rows.text(1)), rows.integer(2)};
    }
  }

  // Records without times are those that the profiler lost.
  static bool sensible(int64_t start, int64_t end) {
    constexpr int64_t kMost = 4'000'000'000'000'000'000;
    return start >= -kMost && start <= kMost && end >= start && end <= kMost &&
           !(start == 0 && end == 0);
  }

  static int64_t blocks(const SqliteFile::Rows& rows, int first) {
    int64_t product = 1;
    for (int i = first; i < first + 3; ++i) {
      const int64_t n = rows.integer(i, 1);
      if (n <= 0 || product > std::numeric_limits<int64_t>::max() / n) return 0;
      product *= n;
    }
    return product;
  }

  void read_ops(const std::string& table, OpKind kind, std::string_view fallback) {
    if (!file_.has_table(table)) return;
    SqliteFile::Rows rows(
        file_, table,
        {"start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid",
         "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
         "bytes", "copyKind", "srcKind", "dstKind"});
    while (rows.next()) {
      DeviceOp op;
      op.start_ns = rows.integer(0);
      op.end_ns = rows.integer(1);
      const int64_t device = rows.integer(2, -1);
      if (!sensible(op.start_ns, op.end_ns) || device < 0 || device >= 1024) {
        ++trace_.malformed;
        continue;
      }
      op.kind = kind;
      op.correlation = rows.integer(5, kNoCorrelation);
      op.stream = trace_.streams.add({process_of(rows.integer(6)), static_cast<uint32_t>(device),
                                      static_cast<uint32_t>(rows.integer(3)),
                                      static_cast<uint64_t>(rows.integer(4))});
      op.name = kind == OpKind::kernel ? name(rows.integer(rows.empty(7) ? 8 : 7))
                                       : trace_.names.add(fallback);
      if (kind == OpKind::kernel) {
        op.size = blocks(rows, 9);
        op.block_threads = static_cast<uint32_t>(blocks(rows, 12));
      } else {
        op.size = rows.integer(15);
      }
      if (kind == OpKind::copy) {
        op.copy = copy_kind_of(rows.integer(16));
        op.memory = host_memory(rows.integer(op.copy == CopyKind::device_to_host ? 18 : 17, -1));
      }
      trace_.ops.push_back(op);
    }
  }

  uint32_t thread(int64_t global) {
    return trace_.threads.add({process_of(global), thread_of(global)});
  }

  void read_calls(const std::string& table) {
    if (!file_.has_table(table)) return;
    SqliteFile::Rows rows(file_, table, {"start", "end", "correlationId", "nameId", "globalTid"});
    while (rows.next()) {
      const int64_t start = rows.integer(0), end = rows.integer(1);
      if (!sensible(start, end)) {
        ++trace_.malformed;
        continue;
      }
      trace_.calls.push_back({start, end, rows.integer(2, kNoCorrelation), name(rows.integer(3)),
                              thread(rows.integer(4))});
    }
  }

  void add_span(int64_t start, int64_t end, uint32_t name_id, int64_t global, SpanKind kind) {
    if (!sensible(start, end)) {
      ++trace_.malformed;
      return;
    }
    trace_.spans.push_back({start, end, name_id, thread(global), kind});
  }

  // Ranges that a thread pushed and popped or started and ended (ENUM_NSYS_EVENT_TYPE 59 and 60).
  // Those of every operation, as emit_nvtx() writes them, say nothing here and are very many.
  void read_ranges() {
    if (!file_.has_table("NVTX_EVENTS")) return;
    SqliteFile::Rows rows(file_, "NVTX_EVENTS",
                          {"start", "end", "eventType", "text", "textId", "globalTid"});
    bool torch = false;
    while (rows.next()) {
      const int64_t type = rows.integer(2);
      if ((type != 59 && type != 60) || rows.empty(1)) continue;
      const uint32_t id = rows.empty(3) ? name(rows.integer(4)) : 0;
      const std::string_view text =
          rows.empty(3) ? std::string_view(trace_.names[id]) : rows.text(3);
      torch = torch || text.starts_with("aten::");
      if (text.find("op_id = ") != std::string_view::npos || text.starts_with("aten::")) continue;
      const bool loader = text.starts_with("enumerate(DataLoader)");
      add_span(rows.integer(0), rows.integer(1), trace_.names.add(text.substr(0, 4096)),
               rows.integer(5), loader ? SpanKind::loader : SpanKind::range);
    }
    if (torch) trace_.framework = "PyTorch";
  }

  // System calls that wait, as the trace of the operating system's libraries gives them.
  void read_waits() {
    if (!file_.has_table("OSRT_API")) return;
    SqliteFile::Rows rows(file_, "OSRT_API", {"start", "end", "nameId", "globalTid"});
    while (rows.next())
      add_span(rows.integer(0), rows.integer(1), name(rows.integer(2)), rows.integer(3),
               SpanKind::blocked);
  }

  void read_overhead(const std::string& table) {
    if (!file_.has_table(table)) return;
    SqliteFile::Rows rows(file_, table, {"start", "end", "nameId", "globalTid"});
    while (rows.next()) {
      if (rows.empty(3)) continue;
      add_span(rows.integer(0), rows.integer(1), name(rows.integer(2)), rows.integer(3),
               SpanKind::overhead);
    }
  }

  std::string path_;
  SqliteFile file_;
  Trace trace_;
  std::unordered_map<int64_t, uint32_t> names_;
};

}  // namespace

Trace read_nsys(const std::string& path) { return NsysReader(path).read(); }

}  // namespace saturate::observe
