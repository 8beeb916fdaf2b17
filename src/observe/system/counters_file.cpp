// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/durable_file.h"
#include "base/error.h"
#include "observe/system/counters.h"

namespace saturate::observe {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kName = "/counters.json";
constexpr int kSchema = 1;
constexpr size_t kMostBytes = 1 << 20;

Json clock_json(const ClockView& c) {
  Json reasons = Json::array();
  for (const auto& [bit, n] : c.by_reason)
    reasons.push_back({{"bit", bit}, {"name", clock_reason_names(bit)}, {"samples", n}});
  return {{"samples", c.samples},   {"held", c.held},   {"mean_mhz", c.mean_mhz},
          {"full_mhz", c.full_mhz}, {"speed", c.speed}, {"reasons", reasons}};
}

ClockView read_clock(const Json& j) {
  ClockView c;
  c.samples = j.at("samples").get<int>();
  c.held = j.at("held").get<int>();
  c.mean_mhz = j.at("mean_mhz").get<double>();
  c.full_mhz = j.at("full_mhz").get<double>();
  c.speed = std::clamp(j.at("speed").get<double>(), 0.01, 1.0);
  for (const Json& reason : j.at("reasons"))
    c.by_reason[reason.at("bit").get<uint64_t>()] = reason.at("samples").get<int>();
  return c;
}

void read_memory(const Json& curves, Counters& c) {
  for (const Json& curve : curves) {
    Curve& memory = c.memory[curve.at("gpu").get<int>()];
    for (const Json& point : curve.at("points"))
      memory.add(static_cast<int64_t>(1e9 * std::clamp(point.at(0).get<double>(), 0.0, 1e9)),
                 point.at(1).get<double>());
  }
}

}  // namespace

void write_counters(const Counters& c, const std::string& folder) {
  Json j;
  j["schema_version"] = kSchema;
  j["seconds"] = c.seconds;
  j["no_gpu"] = c.no_gpu;
  j["gpus"] = Json::array();
  for (const auto& [gpu, name] : c.gpus) {
    const auto held = c.clocks_held_by.find(gpu);
    j["gpus"].push_back({{"gpu", gpu}, {"name", name}});
    if (held != c.clocks_held_by.end()) j["gpus"].back()["clocks_held_by"] = held->second;
    if (const auto at = c.clocks.find(gpu); at != c.clocks.end())
      j["gpus"].back()["clock"] = clock_json(at->second);
  }
  j["memory_over_time"] = Json::array();  // [seconds, bytes]
  for (const auto& [gpu, curve] : c.memory) {
    Json points = Json::array();
    for (const Curve::Point& p : curve.points())
      points.push_back({static_cast<double>(p.time_ns) * 1e-9, p.most});
    j["memory_over_time"].push_back({{"gpu", gpu}, {"points", std::move(points)}});
  }
  j["values"] = Json::array();
  for (const Counter& v : c.values)
    j["values"].push_back({{"id", v.info->id},
                           {"gpu", v.gpu},
                           {"mean", v.range.mean},
                           {"least", v.range.least},
                           {"most", v.range.most},
                           {"first", v.first},
                           {"last", v.last},
                           {"samples", v.range.samples}});
  const std::string text = j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
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
    std::ifstream file(path);
    const Json j = Json::parse(file);
    if (j.at("schema_version").get<int>() != kSchema)
      throw Error(Errc::invalid_argument, "counters", path + ": is of another version");
    Counters c;
    c.seconds = j.at("seconds").get<double>();
    c.no_gpu = j.at("no_gpu").get<std::string>();
    for (const Json& g : j.at("gpus")) {
      const int gpu = g.at("gpu").get<int>();
      c.gpus[gpu] = g.at("name").get<std::string>();
      if (g.contains("clocks_held_by"))
        c.clocks_held_by[gpu] = g.at("clocks_held_by").get<std::string>();
    }
    for (const Json& g : j.at("gpus"))
      if (g.contains("clock")) c.clocks[g.at("gpu").get<int>()] = read_clock(g.at("clock"));
    if (j.contains("memory_over_time")) read_memory(j.at("memory_over_time"), c);
    for (const Json& v : j.at("values")) {
      Counter counter;
      counter.info = counter_info(v.at("id").get<std::string>());
      if (counter.info == nullptr) continue;  // of a later version
      counter.gpu = v.at("gpu").get<int>();
      counter.range = {v.at("least").get<double>(), v.at("mean").get<double>(),
                       v.at("most").get<double>(), v.at("samples").get<int>()};
      counter.first = v.at("first").get<double>();
      counter.last = v.at("last").get<double>();
      c.values.push_back(counter);
    }
    return c;
  } catch (const Json::exception& e) {
    throw Error(Errc::invalid_argument, "counters",
                path + ": does not hold counters (" + e.what() + "); remove it to go without");
  }
}

}  // namespace saturate::observe
