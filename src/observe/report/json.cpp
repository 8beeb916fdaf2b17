// SPDX-License-Identifier: Apache-2.0
#include "observe/report/json.h"

#include "base/json.h"
#include "observe/report/host_lines.h"
#include "observe/report/host_uses.h"
#include "observe/report/memory.h"
#include "observe/report/ranks.h"
#include "observe/report/rooflines.h"
#include "observe/report/shared_gpu.h"
#include "observe/report/text.h"

namespace saturate::observe {
namespace {

Json budget_json(const Budget& budget) {
  Json j = Json::Object{};
  for (size_t l = 0; l < kLeaves; ++l)
    j[std::string(leaf_info(static_cast<Leaf>(l)).id)] = budget.ns[l];
  return j;
}

// [nanoseconds since the first sample, value]
Json curve_json(const Curve& curve) {
  Json points = Json::Array{};
  for (const Curve::Point& p : curve.points()) points.push_back(Json::Array{p.time_ns, p.most});
  return points;
}

Json fix_json(const Fix& f) {
  Json with = Json::Array{};
  for (const FixKind kind : f.with) with.push_back(fix_info(kind).id);
  return {{"id", fix_info(f.kind).id},
          {"title", fix_info(f.kind).title},
          {"speedup_at_most", f.speedup},
          {"is_ceiling", f.ceiling},
          {"range", f.high > 0 ? Json(Json::Array{f.low, f.high}) : Json()},
          {"assumes", f.assumes},
          {"with", std::move(with)},
          {"obstacle", f.obstacle},
          {"own_share", f.own},
          {"step_ns", f.step_ns > 0 ? Json(f.step_ns) : Json()},
          {"attributed_share", f.share},
          {"shared_with_first", f.shared},
          {"evidence", printable(f.evidence)},
          {"action", f.action},
          {"caveat", f.caveat}};
}

const char* copy_name(CopyKind kind) {
  constexpr const char* kNames[] = {"unknown", "host_to_device", "device_to_host",
                                    "device_to_device", "peer"};
  return kNames[static_cast<size_t>(kind)];
}

const char* memory_name(HostMemory memory) {
  constexpr const char* kNames[] = {"unknown", "pageable", "pinned"};
  return kNames[static_cast<size_t>(memory)];
}

Json known(double value) { return value > 0 ? Json(value) : Json(nullptr); }

const char* precision_name(Precision precision) {
  constexpr const char* kNames[] = {"unknown", "f64", "f32", "f16", "f8"};
  return kNames[static_cast<size_t>(precision)];
}

// Null where the capture or the table of devices does not say.
Json kernel_json(const KernelStat& k, const DevicePeaks* peaks) {
  const Roofline r = roofline(k, peaks);
  return {
      {"name", printable(k.name)},
      {"leaf", leaf_info(k.leaf).id},
      {"count", k.count},
      {"total_ns", k.total_ns},
      {"longest_ns", k.longest_ns},
      {"blocks", k.blocks},
      {"block_threads", k.block_threads},
      {"flops", known(k.flops)},
      {"least_bytes", known(k.bytes)},
      {"with_work_ns", k.work_ns},
      {"inputs", precision_name(k.precision)},
      {"tflops", known(r.tflops)},
      {"gb_per_s", known(r.gb_per_s)},
      {"roofline_share", known(r.share)},
      {"bound", r.share <= 0 ? Json(nullptr) : Json(r.compute_bound ? "arithmetic" : "memory")}};
}

Json peaks_json(const DevicePeaks* peaks) {
  if (peaks == nullptr) return nullptr;
  return {{"tensor_16_bit_tflops", known(peaks->tensor16)},
          {"tf32_tflops", known(peaks->tf32)},
          {"fp32_tflops", known(peaks->fp32)},
          {"tensor_8_bit_tflops", known(peaks->tensor8)},
          {"memory_gb_per_s", peaks->memory},
          {"link_gb_per_s", peaks->link}};
}

// Null where they were not measured.
Json copy_rates_json(const CopyRates& r) {
  if (!r.known()) return nullptr;
  return {{"device", printable(r.device)},
          {"pinned_to_device_gb_per_s", r.pinned_in},
          {"pinned_to_host_gb_per_s", r.pinned_out},
          {"pageable_to_device_gb_per_s", r.pageable_in},
          {"pageable_to_host_gb_per_s", r.pageable_out}};
}

Json device_json(const DeviceAnalysis& d) {
  const DevicePeaks* peaks = device_peaks(d.info.name);
  Json j;
  j["device"] = d.device;
  j["name"] = printable(d.info.name);
  j["multiprocessors"] = d.info.multiprocessors;
  j["peaks"] = peaks_json(peaks);
  j["wall_ns"] = d.to_ns - d.from_ns;
  j["busy_ns"] = d.budget.busy_ns();
  j["operations"] = d.ops;
  j["launches"] = d.launches;
  j["launch_calls_ns"] = d.launch_ns;
  j["leaves_ns"] = budget_json(d.budget);
  Json& evidence = j["idle_by_call"] = Json::Array{};
  for (const auto& [key, time] : d.evidence)
    evidence.push_back({{"leaf", leaf_info(key.first).id},
                        {"name", printable(key.second)},
                        {"ns", time.ns},
                        {"gaps", time.count}});
  Json& kernels = j["kernels"] = Json::Array{};
  for (const KernelStat& k : d.kernels) kernels.push_back(kernel_json(k, peaks));
  Json& copies = j["copies"] = Json::Array{};
  for (const auto& [key, c] : d.copies)
    copies.push_back({{"kind", copy_name(key.first)},
                      {"host_memory", memory_name(key.second)},
                      {"count", c.count},
                      {"bytes", c.bytes},
                      {"total_ns", c.total_ns},
                      {"link_gb_per_s", known(copy_peak(key.first, peaks))},
                      {"below_64_kib", c.small}});
  j["host_lines"] = host_lines_json(d.host_lines);
  j["work_lines"] = work_lines_json(d.work_lines);
  if (!d.memory.allocated.empty())
    j["memory"] = {{"allocated_most", d.memory.allocated.most()},
                   {"allocated_first", d.memory.allocated.first()},
                   {"allocated_last", d.memory.allocated.last()},
                   {"reserved_most", d.memory.reserved.most()},
                   {"growth", d.memory.growth},
                   {"source", d.memory.by_calls ? "cuda_calls" : "allocator"},
                   {"allocated_over_time", curve_json(d.memory.allocated)},
                   {"reserved_over_time", curve_json(d.memory.reserved)}};
  return j;
}

}  // namespace

std::string render_json(const Diagnosis& g) {
  const Analysis& a = g.analysis;
  Json j;
  j["schema_version"] = kReportSchema;
  j["file"] = printable(g.file);
  j["verdict"] = {{"id", g.verdict.id},
                  {"headline", g.verdict.headline},
                  {"confidence", g.verdict.confidence},
                  {"cause_ns", g.verdict.cause_ns},
                  {"why", printable(g.verdict.why)},
                  {"next", printable(g.verdict.next)},
                  {"line", named_line_json(g.verdict)}};
  j["capture"] = {{"source", a.source},
                  {"framework", a.framework},
                  {"records", a.records},
                  {"dropped", a.dropped},
                  {"malformed", a.malformed},
                  {"slowdown", a.slowdown},
                  {"slowdown_by_pace", a.slowdown_by_pace},
                  {"notes", Json::Array{}}};
  for (const std::string& note : a.notes) j["capture"]["notes"].push_back(printable(note));
  const StepAnalysis& s = a.steps;
  j["steps"] = {{"found", s.found},         {"rule", printable(s.rule)}, {"count", s.count},
                {"warm_up", s.warm_up},     {"irregular", s.irregular},  {"mean_ns", s.mean_ns},
                {"median_ns", s.median_ns}, {"p10_ns", s.p10_ns},        {"p90_ns", s.p90_ns},
                {"drift", s.drift}};
  j["ranks"] = ranks_json(g);
  const FixReport& f = g.fixes;
  j["replay"] = {{"numbers", f.numbers},
                 {"why_not", f.why_not},
                 {"error", f.replay_error},
                 {"unexplained", f.unexplained},
                 {"step_ns", f.replay_step_ns},
                 {"whole_steps", f.whole_steps},
                 {"dispatch_scale", f.dispatch.factor},
                 {"dispatch_assumed", f.dispatch.assumed}};
  Json fixes = Json::Array{}, possible = Json::Array{}, not_cause = Json::Array{};
  if (f.numbers) {
    for (const Fix& fix : f.worth) fixes.push_back(fix_json(fix));
    for (const Fix& fix : f.not_worth) not_cause.push_back(fix_json(fix));
  }
  for (const Fix& fix : f.possible) possible.push_back(fix_json(fix));
  j["fixes"] = std::move(fixes);
  j["possible"] = std::move(possible);  // between 1x and the upper end of the range
  Json& together = j["together"] = Json::Array{};
  for (const Pair& p : f.together)
    together.push_back({{"ids", Json::Array{fix_info(p.first).id, fix_info(p.second).id}},
                        {"speedup_at_most", p.speedup},
                        {"is_ceiling", p.ceiling},
                        {"range", p.high > 0 ? Json(Json::Array{p.low, p.high}) : Json()},
                        {"step_ns", p.step_ns}});
  j["not_the_cause"] = std::move(not_cause);
  Json& counters = j["counters"] = Json::Array{};
  for (const Counter& c : g.counters.values)
    counters.push_back({{"id", c.info->id},
                        {"gpu", c.gpu < 0 ? Json(nullptr) : Json(c.gpu)},
                        {"mean", c.range.mean},
                        {"least", c.range.least},
                        {"most", c.range.most},
                        {"first", c.first},
                        {"last", c.last},
                        {"samples", c.range.samples},
                        {"a_step", c.info->per_step && g.unrecorded_step_ns() > 0
                                       ? Json(c.range.mean * g.unrecorded_step_ns() * 1e-9)
                                       : Json(nullptr)},
                        {"meaning", c.info->meaning}});
  if (const std::optional<RunRate> run = run_rate(g.counters))
    j["run_at_most"] = {{"gpu", run->device}, {"tflops", run->tflops}, {"gb_per_s", run->gb_per_s}};
  j["host_uses"] = host_uses_json(g);
  j["shapes"] = a.shapes;
  j["copy_rates"] = copy_rates_json(a.copy_rates);
  Json& clocks = j["clocks"] = Json::Array{};
  for (const auto& [gpu, c] : g.counters.clocks) {
    Json reasons = Json::Array{};
    for (const auto& [bit, n] : c.by_reason)
      reasons.push_back({{"reason", clock_reason_names(bit)},
                         {"share", static_cast<double>(n) / std::max(1, c.samples)}});
    clocks.push_back({{"gpu", gpu},
                      {"mean_mhz", c.mean_mhz},
                      {"full_mhz", known(c.full_mhz)},
                      {"held_share", static_cast<double>(c.held) / std::max(1, c.samples)},
                      {"speed", c.speed},
                      {"reasons", std::move(reasons)}});
  }
  Json& memory = j["gpu_memory"] = Json::Array{};
  for (const auto& [gpu, used] : g.counters.memory)
    memory.push_back({{"gpu", gpu},
                      {"most", used.most()},
                      {"growth", lasting_growth(used.points())},
                      {"used_over_time", curve_json(used)}});
  j["memory_drift"] = memory_drift(g);
  j["shared_gpu"] = shared_gpu_words(g);
  Json& devices = j["devices"] = Json::Array{};
  for (const DeviceAnalysis& d : a.devices) devices.push_back(device_json(d));
  return j.dump(2) + "\n";
}

}  // namespace saturate::observe
