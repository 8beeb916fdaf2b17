// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/converter.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <utility>

namespace saturate::observe::cupti {
namespace {

// On an H200, rounded up: 1 to 2 us a launch; 12.7 us of a waiting device at each graph.
constexpr int64_t kLaunchCostNs = 2'000, kGraphCostNs = 12'000, kCallCostNs = 1'000;

constexpr size_t kMostWaits = 200'000;  // of one turn

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (text.find(part) != std::string_view::npos) return true;
  }
  return false;
}

HostMemory host_memory(uint8_t kind) {
  return kind == 1 ? HostMemory::pageable : kind == 2 ? HostMemory::pinned : HostMemory::unknown;
}

const char* copy_name(CopyKind kind, HostMemory memory) {
  const bool pageable = memory == HostMemory::pageable;
  switch (kind) {
    case CopyKind::host_to_device:
      return pageable ? "Memcpy HtoD (Pageable -> Device)" : "Memcpy HtoD (Pinned -> Device)";
    case CopyKind::device_to_host:
      return pageable ? "Memcpy DtoH (Device -> Pageable)" : "Memcpy DtoH (Device -> Pinned)";
    case CopyKind::device_to_device:
      return "Memcpy DtoD";
    case CopyKind::peer:
      return "Memcpy PtoP";
    default:
      return "Memcpy";
  }
}

const char* overhead_name(uint32_t kind) {
  constexpr std::pair<uint32_t, const char*> kNames[] = {
      {kDriverCompiler, "Loading: driver compiles a kernel"},
      {kModuleLoading, "Loading of a module"},
      {kLazyLoading, "Loading of a function"},
      {kCommandBufferFull, "Command Buffer Full"},
      {kBufferFlush, "CUPTI: buffer flush"},
      {kInstrumentation, "CUPTI: instrumentation"},
      {kResource, "CUPTI: resources"},
      {kBufferRequest, "CUPTI: buffer request"}};
  for (const auto& [known, name] : kNames)
    if (known == kind) return name;
  return "CUPTI";
}

}  // namespace

bool wanted_call(uint32_t domain, std::string_view name) {
  // Copies, launches, waits: the runtime's are enough, with what libraries call past it.
  if (domain == kDomainDriver)
    return has_any(name, {"cuLaunch", "cuGraphLaunch", "Synchronize", "cuMemAlloc", "cuMemFree",
                          "cuMemcpy", "cuMemset", "cuMemCreate", "cuMemMap", "cuMemUnmap",
                          "cuMemRelease", "cuModuleLoad", "cuLibraryLoad", "cuLinkAdd",
                          "cuLinkComplete", "cuGraphInstantiate", "cuGraphExecUpdate"});
  if (has_any(name, {"GetSymbol", "Occupancy", "Attribute", "Pointer", "Peek", "IsCapturing",
                     "CaptureInfo", "GetParams", "SetParams", "GetNodes", "AddNode", "Query"}))
    return false;
  return has_any(name, {"Launch", "Memcpy", "Memset", "Malloc", "cudaFree", "HostAlloc",
                        "HostRegister", "HostUnregister", "Synchronize", "StreamWaitEvent",
                        "MemPool", "Prefetch", "ModuleLoad", "LibraryLoad", "GraphInstantiate",
                        "GraphExecUpdate", "DeviceReset", "EventRecord"});
}

std::string plain_name(std::string_view name) {
  // "_v7000" is the version that brought the function; "_v2" belongs to the name.
  const size_t v = name.rfind("_v");
  if (v != std::string_view::npos && name.size() - v >= 5 &&
      name.find_first_not_of("0123456789", v + 2) == std::string_view::npos)
    name = name.substr(0, v);
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  }
  return std::string(name);
}

Converter::Converter(const Api& api, const KernelCode& code, uint32_t process)
    : api_(api), code_(code), process_(process) {}

void Converter::add(const Activity& record, Trace& trace) {
  const auto as = [&]<class T>(const T*) -> const T& {
    return *reinterpret_cast<const T*>(&record);
  };
  switch (record.kind) {
    case kConcurrentKernel:
      return kernel(as(static_cast<KernelActivity*>(nullptr)), trace);
    case kMemcpy:
      return copy(as(static_cast<CopyActivity*>(nullptr)), trace);
    case kMemcpyPeer:
      return copy(as(static_cast<PeerCopyActivity*>(nullptr)), trace);
    case kMemset:
      return fill(as(static_cast<FillActivity*>(nullptr)), trace);
    case kGraphTrace:
      return graph(as(static_cast<GraphActivity*>(nullptr)), trace);
    case kRuntime:
    case kDriver:
      return call(as(static_cast<ApiActivity*>(nullptr)), trace);
    case kOverhead:
      return overhead(as(static_cast<OverheadActivity*>(nullptr)), trace);
    case kMemory2:
      return allocations_.add(as(static_cast<MemoryActivity*>(nullptr)));
    case kSynchronization: {
      const auto& s = as(static_cast<SynchronizationActivity*>(nullptr));
      if (waits_.size() < kMostWaits) waits_[s.correlation] = s;
      return;
    }
    case kDevice: {
      const auto& d = as(static_cast<DeviceActivity*>(nullptr));
      if (d.id < 1024) trace.devices[d.id] = {d.name ? d.name : "", d.multiprocessors};
      return;
    }
    default:
      return;
  }
}

std::string Converter::target_of(const SynchronizationActivity& s) const {
  constexpr uint32_t kInvalid = UINT32_MAX;
  std::string target;
  if (s.type == kStreamSynchronize && s.stream != kInvalid)
    target = "stream " + std::to_string(s.stream);
  if (s.type == kEventSynchronize) {
    target = "an event";
    if (s.stream != kInvalid && s.stream != 0) target += " of stream " + std::to_string(s.stream);
  }
  return target;
}

void Converter::complete(Trace& trace) {
  allocations_.write(trace.memory);
  if (waits_.empty()) return;
  for (HostCall& call : trace.calls) {
    if (call.correlation < 0 || call.correlation > UINT32_MAX) continue;
    const auto wait = waits_.find(static_cast<uint32_t>(call.correlation));
    if (wait == waits_.end()) continue;
    const std::string& name = trace.names[call.name];
    const std::string target = target_of(wait->second);
    if (name.ends_with("Synchronize") && !target.empty())
      call.name = trace.names.add(name + " (" + target + ")");
  }
  waits_.clear();
}

double CallCount::rate() const {
  return count < 5 || last_ns <= first_ns
             ? 0
             : 1e9 * static_cast<double>(count - 1) / static_cast<double>(last_ns - first_ns);
}

void Converter::count_calls(int64_t from_ns, int64_t to_ns) {
  count_from_ns_ = from_ns;
  count_to_ns_ = to_ns;
  for (CallCount& c : counts_) c.count = 0;
}

int64_t Converter::recording_cost_ns() const {
  int64_t cost = 0;
  for (const CallCount& c : counts_) {
    const bool launch = c.name.find("Launch") != std::string::npos;
    const bool graph = c.name.find("GraphLaunch") != std::string::npos;
    cost += c.count * (graph ? kGraphCostNs : launch ? kLaunchCostNs : kCallCostNs);
  }
  return cost;
}

Converter::Call& Converter::call_of(Trace& trace, uint32_t domain, uint32_t callback) {
  const auto [at, fresh] = calls_.try_emplace(uint64_t{domain} << 32 | callback);
  if (!fresh) return at->second;
  const char* name = nullptr;
  if (api_.callback_name(domain, callback, &name) != kSuccess || name == nullptr ||
      !wanted_call(domain, name))
    return at->second;
  at->second = {trace.names.add(plain_name(name)), counts_.size(),
                has_any(name, {"Synchronize", "Memcpy"})};
  counts_.push_back({domain, callback, plain_name(name), 0, 0, 0});
  return at->second;
}

uint32_t Converter::kernel_name(Trace& trace, const char* mangled) {
  if (mangled == nullptr) return trace.names.add("kernel without a name");
  // CUPTI shares the text between the records of a kernel; a module that is unloaded may free it
  // and another come to lie there.
  Kernel& k = kernels_[mangled];
  if (k.name != kUnwanted && k.mangled == mangled) return k.name;
  int status = 0;
  char* plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  k.mangled = mangled;
  std::string name = status == 0 && plain != nullptr ? plain : mangled;
  std::free(plain);
  if (code_.computes_in_float64(k.mangled) && !names_narrow_type(name) &&
      name.find("float64") == std::string::npos)
    name += kFloat64Code;
  k.name = trace.names.add(name);
  return k.name;
}

void Converter::push(Trace& trace, DeviceOp op, uint64_t start, uint64_t end) {
  if (start == 0 || end == 0) {
    ++untimed_;
    return;
  }
  op.start_ns = static_cast<int64_t>(start);
  op.end_ns = static_cast<int64_t>(end);
  trace.ops.push_back(op);
}

// A launch has one number and issues one kernel. The same number again means that CUPTI has stopped
// to count; better none than a wrong one.
int64_t Converter::numbered(uint32_t correlation, uint32_t& last) {
  const bool again = correlation == last;
  last = correlation;
  if (again) ++unnumbered_;
  return again ? kNoCorrelation : int64_t{correlation};
}

void Converter::kernel(const KernelActivity& k, Trace& trace) {
  DeviceOp op;
  op.kind = OpKind::kernel;
  // Those of a graph share the number of its launch.
  op.correlation = k.graph_node != 0 ? k.correlation : numbered(k.correlation, last_kernel_);
  op.size = int64_t{k.grid[0]} * k.grid[1] * k.grid[2];
  op.block_threads = static_cast<uint32_t>(k.block[0] * k.block[1] * k.block[2]);
  op.name = kernel_name(trace, k.name);
  op.stream = trace.streams.add({process_, k.device, k.context, k.stream});
  push(trace, op, k.start, k.end);
}

template <class Copy>
void Converter::copy(const Copy& c, Trace& trace) {
  DeviceOp op;
  op.kind = OpKind::copy;
  op.correlation = c.correlation;
  op.size = static_cast<int64_t>(c.bytes);
  op.copy = copy_kind_of(c.copy_kind);
  if (op.copy == CopyKind::host_to_device) op.memory = host_memory(c.source_kind);
  if (op.copy == CopyKind::device_to_host) op.memory = host_memory(c.destination_kind);
  op.name = trace.names.add(copy_name(op.copy, op.memory));
  op.stream = trace.streams.add({process_, c.device, c.context, c.stream});
  push(trace, op, c.start, c.end);
}

void Converter::fill(const FillActivity& f, Trace& trace) {
  DeviceOp op;
  op.kind = OpKind::fill;
  op.correlation = f.correlation;
  op.size = static_cast<int64_t>(f.bytes);
  op.name = trace.names.add("Memset (Device)");
  op.stream = trace.streams.add({process_, f.device, f.context, f.stream});
  push(trace, op, f.start, f.end);
}

void Converter::graph(const GraphActivity& g, Trace& trace) {
  if (g.start != 0 && !recorded(static_cast<int64_t>(g.start))) return;
  DeviceOp op;
  op.kind = OpKind::graph;
  op.correlation = g.correlation;
  op.name = trace.names.add("graph " + std::to_string(g.graph));
  op.stream = trace.streams.add({process_, g.device, g.context, g.stream});
  push(trace, op, g.start, g.end);
}

void Converter::nothing_recorded_yet() { stretches_ = {{0, 0}}; }

void Converter::stretch_begins(int64_t at_ns) {
  constexpr size_t kMostStretches = 16;  // seconds old, all of them
  if (stretches_.size() == kMostStretches) stretches_.erase(stretches_.begin());
  stretches_.push_back({at_ns, INT64_MAX});
}

void Converter::stretch_ends(int64_t at_ns) {
  if (!stretches_.empty()) stretches_.back().to_ns = std::min(stretches_.back().to_ns, at_ns);
}

bool Converter::recorded(int64_t time_ns) const {
  return stretches_.empty() ||
         std::any_of(stretches_.begin(), stretches_.end(),
                     [&](const Stretch& s) { return s.from_ns <= time_ns && time_ns < s.to_ns; });
}

bool Converter::resumed_within(int64_t start_ns, int64_t end_ns) const {
  return std::any_of(stretches_.begin(), stretches_.end(),
                     [&](const Stretch& s) { return start_ns < s.from_ns && s.from_ns < end_ns; });
}

void Converter::call(const ApiActivity& a, Trace& trace) {
  const uint32_t domain = a.kind == kRuntime ? kDomainRuntime : kDomainDriver;
  const Call& found = call_of(trace, domain, a.callback);
  if (found.name == kUnwanted || a.start == 0 || a.end == 0) return;
  const auto start = static_cast<int64_t>(a.start);
  if (start >= count_from_ns_ && start < count_to_ns_) {
    CallCount& c = counts_[found.count];
    c.first_ns = c.count == 0 ? start : std::min(c.first_ns, start);
    c.last_ns = c.count == 0 ? start : std::max(c.last_ns, start);
    ++c.count;
  }
  const int64_t number = numbered(a.correlation, last_call_[domain]);
  // A wait that began in a pause shows until when the device had work from before.
  if (!recorded(start) && !(found.waits && resumed_within(start, static_cast<int64_t>(a.end))))
    return;
  const uint32_t thread = trace.threads.add({process_, a.thread});
  trace.calls.push_back({start, static_cast<int64_t>(a.end), number, found.name, thread});
}

void Converter::overhead(const OverheadActivity& o, Trace& trace) {
  if (o.object_kind != kObjectThread || o.start == 0 || o.end == 0) return;
  const uint32_t thread = trace.threads.add({process_, o.object[1]});
  trace.spans.push_back({static_cast<int64_t>(o.start), static_cast<int64_t>(o.end),
                         trace.names.add(overhead_name(o.overhead)), thread, SpanKind::overhead});
}

}  // namespace saturate::observe::cupti
