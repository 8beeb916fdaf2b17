// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace saturate::train {
namespace {

// One visit per row type names its members once, for writing and for reading.
template <class Visit>
void visit_fields(Visit& v, RunHeader& r) {
  v("started", r.started);
  v("config", r.config);
  v("environment", r.environment);
}
template <class Visit>
void visit_fields(Visit& v, TrainRow& r) {
  v("epoch", r.epoch);
  v("elapsed_s", r.elapsed_s);
  v("loss", r.loss);
  v("learning_rate", r.learning_rate);
  v("grad_norm", r.grad_norm);
  v("loss_scale", r.loss_scale);
  v("target_tokens_per_s", r.target_tokens_per_s);
  v("data_wait", r.data_wait);
  v("device_busy", r.device_busy);
  v("flop_utilisation", r.flop_utilisation);
  v("memory_bytes", r.memory_bytes);
}
template <class Visit>
void visit_fields(Visit& v, ValidRow& r) {
  v("set", r.set);
  v("epoch", r.epoch);
  v("elapsed_s", r.elapsed_s);
  v("loss", r.loss);
  v("bleu", r.bleu);
  v("chrf", r.chrf);
}
template <class Visit>
void visit_fields(Visit& v, TestRow& r) {
  v("set", r.set);
  v("model_step", r.model_step);
  v("loss", r.loss);
  v("perplexity", r.perplexity);
  v("bleu", r.bleu);
  v("chrf", r.chrf);
  v("bleu_signature", r.bleu_signature);
  v("chrf_signature", r.chrf_signature);
}
template <class Visit>
void visit_fields(Visit& v, SampleRow& r) {
  v("index", r.index);
  v("source", r.source);
  v("hypothesis", r.hypothesis);
  v("reference", r.reference);
}
template <class Visit>
void visit_fields(Visit& v, RoutingRow& r) {
  v("layer", r.layer);
  v("shares", r.shares);
  v("left_out", r.left_out);
  v("dropped", r.dropped);
  v("entropy", r.entropy);
  v("balance", r.balance);
  v("z", r.z);
}
template <class Visit>
void visit_fields(Visit& v, RunEnd& r) {
  v("elapsed_s", r.elapsed_s);
  v("status", r.status);
  v("results", r.results);
}

struct Writer {
  Json& json;
  void operator()(const char* key, double value) {
    json.add(key, value);  // null when not finite
  }
  void operator()(const char* key, int64_t value) { json.add(key, value); }
  void operator()(const char* key, const std::string& value) { json.add(key, value); }
  void operator()(const char* key, const std::vector<double>& values) {
    json.add(key, Json::Array(values.begin(), values.end()));
  }
  void operator()(const char* key, const TextPairs& pairs) {
    Json object = Json::Object{};
    for (const auto& [name, value] : pairs) object.add(name, value);
    json.add(key, std::move(object));
  }
};

// What a row lacks keeps its default.
struct Reader {
  const Json& json;
  JsonFields& fields;
  void operator()(const char* key, double& value) const { value = fields.number_or(key, value); }
  void operator()(const char* key, int64_t& value) const { value = fields.integer_or(key, value); }
  void operator()(const char* key, std::string& value) const { value = fields.text_or(key, value); }
  void operator()(const char* key, std::vector<double>& values) const {
    if (!fields.has(key)) return;
    for (size_t i = 0; i < json[key].size(); ++i)
      values.push_back(json[key][i].number().value_or(kNotMeasured));
  }
  void operator()(const char* key, TextPairs& pairs) const {
    if (!fields.has(key)) return;
    const Json& object = json[key];
    JsonFields texts(object, "metrics", key);
    for (const auto& [name, value] : *object.if_object())
      pairs.emplace_back(name, texts.text(name));
  }
};

struct NumberCollector {
  std::vector<std::pair<const char*, double>> numbers;
  void operator()(const char* key, double value) { numbers.emplace_back(key, value); }
  template <class Other>
  void operator()(const char*, const Other&) {}
};

template <class Row>
MetricsRow read_row(const Json& json, JsonFields& fields) {
  Row row;
  row.step = fields.integer("step");
  const Reader reader{json, fields};
  visit_fields(reader, row);
  return row;
}

std::optional<MetricsRow> parse_row(const std::string& line) {
  const Json json = parse_json(line, "the line");
  JsonFields fields(json, "metrics", "the line");
  const std::string& kind = fields.text("kind");
  if (kind == "run") return read_row<RunHeader>(json, fields);
  if (kind == "train") return read_row<TrainRow>(json, fields);
  if (kind == "valid") return read_row<ValidRow>(json, fields);
  if (kind == "sample") return read_row<SampleRow>(json, fields);
  if (kind == "end") return read_row<RunEnd>(json, fields);
  if (kind == "test") return read_row<TestRow>(json, fields);
  if (kind == "routing") return read_row<RoutingRow>(json, fields);
  return std::nullopt;
}

// Calls use(row, bytes up to the end of its line) until it returns false.
template <class Use>
void for_each_row(const std::filesystem::path& file, Use use) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw Error(Errc::io, "metrics",
                fmt::format("{}: cannot be read; give the folder of a run", file.string()));
  }
  std::string line;
  int64_t number = 0;
  for (uintmax_t end = 0; std::getline(in, line);) {
    if (in.eof()) return;  // no newline: torn by a kill
    ++number;
    end += line.size() + 1;
    try {
      if (const auto row = parse_row(line); row && !use(*row, end)) return;
    } catch (const Error& e) {
      throw Error(
          Errc::invalid_argument, "metrics",
          fmt::format("{}:{}: not a row of metrics ({}); remove the line or restore the file",
                      file.string(), number, e.what()));
    }
  }
}

// Cuts off all from the first row of a step after `last_step`.
const std::filesystem::path& cut_after(const std::filesystem::path& file, int64_t last_step) {
  if (!std::filesystem::exists(file)) return file;
  uintmax_t kept = 0;
  for_each_row(file, [&](const MetricsRow& row, uintmax_t end) {
    if (step_of(row) > last_step) return false;
    kept = end;
    return true;
  });
  std::error_code failed;
  std::filesystem::resize_file(file, kept, failed);
  if (!failed) return file;
  throw Error(
      Errc::io, "metrics",
      fmt::format("{}: cannot be cut to step {}: {}", file.string(), last_step, failed.message()));
}

}  // namespace

const char* kind_of(const MetricsRow& row) noexcept {
  constexpr const char* kKinds[] = {"run", "train", "valid", "sample", "end", "test", "routing"};
  return kKinds[row.index()];
}

int64_t step_of(const MetricsRow& row) noexcept {
  return std::visit([](const auto& r) { return r.step; }, row);
}

std::vector<std::pair<const char*, double>> numbers_of(const MetricsRow& row) {
  NumberCollector collector;
  std::visit([&](auto r) { visit_fields(collector, r); }, row);
  return std::move(collector.numbers);
}

std::string to_json(const MetricsRow& row) {
  Json json;
  json["kind"] = kind_of(row);
  json["step"] = step_of(row);
  Writer writer{json};
  std::visit([&](auto r) { visit_fields(writer, r); }, row);
  return json.dump();
}

std::vector<MetricsRow> read_metrics(const std::filesystem::path& file) {
  std::vector<MetricsRow> rows;
  for_each_row(file, [&](const MetricsRow& row, uintmax_t) {
    rows.push_back(row);
    return true;
  });
  return rows;
}

MetricsLog::MetricsLog(const std::filesystem::path& file)
    : out_(file.string(), AppendFile::Content::emptied) {}

MetricsLog::MetricsLog(const std::filesystem::path& file, int64_t resumed_step)
    : out_(cut_after(file, resumed_step).string()) {}

void MetricsLog::write(const MetricsRow& row) { out_.append(to_json(row) + '\n'); }

}  // namespace saturate::train
