// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/json.h"
#include "observe/system/counters.h"

namespace saturate::observe {
namespace {

constexpr const char* kName = "/counters.json";
constexpr int kSchema = 1;
constexpr size_t kMostBytes = 1 << 20;

Json clock_json(const ClockView& c) {
  Json reasons = Json::Array{};
  for (const auto& [bit, n] : c.by_reason)
    reasons.push_back({{"bit", bit}, {"name", clock_reason_names(bit)}, {"samples", n}});
  return {{"samples", c.samples},   {"held", c.held},   {"mean_mhz", c.mean_mhz},
          {"full_mhz", c.full_mhz}, {"speed", c.speed}, {"reasons", reasons}};
}

// Of one object of the file; JsonFields names what is missing.
struct Fields : JsonFields {
  explicit Fields(const Json& object) : JsonFields(object, "counters", "an entry") {}
  int count(std::string_view key) { return static_cast<int>(integer(key)); }
};

ClockView read_clock(const Json& j) {
  Fields f(j);
  ClockView c;
  c.samples = f.count("samples");
  c.held = f.count("held");
  c.mean_mhz = f.number("mean_mhz");
  c.full_mhz = f.number("full_mhz");
  c.speed = std::clamp(f.number("speed"), 0.01, 1.0);
  for (const Json& entry : f.list("reasons")) {
    Fields reason(entry);
    c.by_reason[static_cast<uint64_t>(reason.integer("bit"))] = reason.count("samples");
  }
  return c;
}

void read_memory(const Json& entry, Counters& c) {
  Fields f(entry);
  Curve& memory = c.memory[f.count("gpu")];
  for (const Json& point : f.list("points")) {
    const std::optional<double> seconds = point[0].number(), bytes = point[1].number();
    if (!seconds || !bytes) f.fail("points", "pairs of numbers are needed");
    memory.add(static_cast<int64_t>(1e9 * std::clamp(*seconds, 0.0, 1e9)), *bytes);
  }
}

}  // namespace

void write_counters(const Counters& c, const std::string& folder) {
  Json j;
  j["schema_version"] = kSchema;
  j["seconds"] = c.seconds;
  j["no_gpu"] = c.no_gpu;
  j["gpus"] = Json::Array{};
  for (const auto& [gpu, name] : c.gpus) {
    Json& g = j["gpus"].push_back({{"gpu", gpu}, {"name", name}});
    const auto held = c.clocks_held_by.find(gpu);
    if (held != c.clocks_held_by.end()) g["clocks_held_by"] = held->second;
    if (const auto at = c.clocks.find(gpu); at != c.clocks.end())
      g["clock"] = clock_json(at->second);
    if (const auto at = c.neighbours.find(gpu); at != c.neighbours.end())
      g["neighbours"] = at->second;
  }
  j["memory_over_time"] = Json::Array{};  // [seconds, bytes]
  for (const auto& [gpu, curve] : c.memory) {
    Json points = Json::Array{};
    for (const Curve::Point& p : curve.points())
      points.push_back(Json::Array{static_cast<double>(p.time_ns) * 1e-9, p.most});
    j["memory_over_time"].push_back({{"gpu", gpu}, {"points", std::move(points)}});
  }
  j["values"] = Json::Array{};
  for (const Counter& v : c.values)
    j["values"].push_back({{"id", v.info->id},
                           {"gpu", v.gpu},
                           {"mean", v.range.mean},
                           {"least", v.range.least},
                           {"most", v.range.most},
                           {"first", v.first},
                           {"last", v.last},
                           {"samples", v.range.samples}});
  const std::string text = j.dump(1) + "\n";
  DurableFile file(folder + kName);
  file.write(text.data(), text.size());
  file.commit();
}

Counters read_counters(const std::string& capture) {
  const std::string path = capture + kName;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  if (std::filesystem::file_size(path, error) > kMostBytes || error)
    throw Error(Errc::invalid_argument, "counters", path + ": is too large to be counters");
  try {
    const Json j = read_json_file(path);
    JsonFields f(j, "counters", path);
    if (f.integer("schema_version") != kSchema)
      f.fail("schema_version", "it is of another version");
    Counters c;
    c.seconds = f.number("seconds");
    c.no_gpu = f.text("no_gpu");
    for (const Json& entry : f.list("gpus")) {
      Fields g(entry);
      const int gpu = g.count("gpu");
      c.gpus[gpu] = g.text("name");
      if (g.has("clocks_held_by")) c.clocks_held_by[gpu] = g.text("clocks_held_by");
      if (g.has("clock")) c.clocks[gpu] = read_clock(entry["clock"]);
      if (g.has("neighbours")) c.neighbours[gpu] = g.count("neighbours");
    }
    if (f.has("memory_over_time"))
      for (const Json& entry : f.list("memory_over_time")) read_memory(entry, c);
    for (const Json& entry : f.list("values")) {
      Fields v(entry);
      Counter counter;
      counter.info = counter_info(v.text("id"));
      if (counter.info == nullptr) continue;  // of a later version
      counter.gpu = v.count("gpu");
      counter.range = {v.number("least"), v.number("mean"), v.number("most"), v.count("samples")};
      counter.first = v.number("first");
      counter.last = v.number("last");
      c.values.push_back(counter);
    }
    return c;
  } catch (const Error& e) {
    throw Error(Errc::invalid_argument, "counters",
                path + ": does not hold counters (" + e.what() + "); remove it to go without");
  }
}

}  // namespace saturate::observe
