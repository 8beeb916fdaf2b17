// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "model/finite.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/model_folder.h"
#include "model/safetensors.h"
#include "train/frozen.h"
#include "train/tokenizer_export.h"

namespace saturate::train {
namespace {

// A flat array of a parameter store, on the host.
std::vector<float> to_host(const Stream& stream, const Buffer& flat) {
  std::vector<float> host(flat.bytes() / sizeof(float));
  copy_to_host(stream, host.data(), flat.data(), flat.bytes());
  stream.synchronize();
  return host;
}

struct FlatArray {
  const char* name;
  Buffer* buffer;
};

std::vector<FlatArray> optimizer_arrays(TrainingStep& step) {
  std::vector<FlatArray> arrays{{"m", &step.first_moment()}, {"v", &step.second_moment()}};
  if (step.average().data()) arrays.push_back({"average", &step.average()});
  return arrays;
}

std::vector<model::TensorSpec> tensor_specs(const ParameterStore& store,
                                            const std::vector<std::string>& arrays) {
  std::vector<model::TensorSpec> specs;
  for (const std::string& array : arrays) {
    for (const ParameterSpec& p : store.specs()) {
      specs.push_back({array + "/" + p.name, "F32", {p.rows, p.cols}});
    }
  }
  return specs;
}

std::vector<model::TensorSpec> optimizer_specs(TrainingStep& step, const ParameterStore& store) {
  std::vector<std::string> names{"master"};
  for (const FlatArray& a : optimizer_arrays(step)) names.push_back(a.name);
  return tensor_specs(store, names);
}

void write_optimizer(const std::string& path, TrainingStep& step, const ParameterStore& store) {
  model::SafetensorsWriter out(path, optimizer_specs(step, store));
  const auto write = [&](const Buffer& flat) {
    const std::vector<float> host = to_host(step.stream(), flat);
    if (&flat == &store.masters()) model::require_finite(store, host);
    for (const ParameterSpec& p : store.specs()) {
      out.write(
          std::span(host).subspan(static_cast<size_t>(p.offset), static_cast<size_t>(p.size())));
    }
  };
  write(store.masters());
  for (const FlatArray& a : optimizer_arrays(step)) write(*a.buffer);
  out.commit();
}

void read_flat(const model::SafetensorsReader& file, const std::string& array,
               const ParameterStore& store, const Stream& stream, const Buffer& flat) {
  std::vector<float> host(flat.bytes() / sizeof(float), 0.0f);
  for (const ParameterSpec& p : store.specs()) {
    const model::TensorView* t = file.find(array + "/" + p.name);
    if (!t || t->shape != std::vector<int64_t>{p.rows, p.cols}) {
      throw Error(
          Errc::invalid_argument, "checkpoint",
          fmt::format("{}: {}/{} is {}, this model needs {}; resume with the model's own "
                      "configuration or start in a new folder",
                      file.path(), array, p.name, t ? model::shape_text(t->shape) : "missing",
                      model::shape_text(std::vector<int64_t>{p.rows, p.cols})));
    }
    model::read_floats(
        *t, 0,
        std::span(host).subspan(static_cast<size_t>(p.offset), static_cast<size_t>(p.size())));
  }
  if (&flat == &store.masters() && model::first_not_finite(host) < host.size()) {
    throw Error(Errc::invalid_argument, "checkpoint",
                file.path() +
                    ": the weights are not finite; remove this checkpoint to resume from "
                    "the one before");
  }
  copy_to_device(stream, flat.data(), host.data(), flat.bytes());
  stream.synchronize();
}

// Of what save_tokenizers and export_tokenizer write: the model as often as it is written
// (tokenizer.json holds it once more) and a line for every piece.
uint64_t tokenizer_bytes(const data::Tokenizer& t, uint64_t times) {
  constexpr uint64_t kLineBytes = 16;  // quotes, indent and number
  if (t.is_bytes()) return 0;
  uint64_t bytes = times * t.serialized().size();
  for (const std::string& piece : t.pieces()) bytes += piece.size() + kLineBytes;
  return bytes;
}

Json state_json(const StepState& s, const RunProgress& p, const ParameterStore& store) {
  Json::Array frozen;
  for (std::string& name : frozen_names(store)) frozen.emplace_back(std::move(name));
  return Json{{"step", s.step},
              {"micro_step", static_cast<int64_t>(s.rng[1])},
              {"updates", int64_t{s.updates}},
              {"loss_scale", static_cast<double>(s.loss_scale)},
              {"good_steps", int64_t{s.good_steps}},
              {"bad_steps_in_row", int64_t{s.bad_steps_in_row}},
              {"elapsed_s", p.elapsed_s},
              {"best_score", p.best_score},
              {"best_step", p.best_step},
              {"validations_without_gain", p.validations_without_gain},
              {"loader", p.loader.to_json()},
              {"frozen", std::move(frozen)},
              {"started_from", p.origin.from},
              {"initial_weights", p.origin.weights}};
}

// What was frozen has no moments and what was not has them, so the set cannot change on the way.
void check_frozen(const Json& state, const std::string& path, const ParameterStore& store) {
  std::set<std::string> before;
  if (const Json* saved = state.find("frozen"); saved && saved->if_array()) {
    for (const Json& name : *saved->if_array())
      if (name.if_string()) before.insert(*name.if_string());
  }
  for (const ParameterSpec& p : store.specs()) {
    if (before.contains(p.name) == p.frozen) continue;
    throw Error(Errc::invalid_argument, "resume",
                fmt::format("{}: {} is {} there and {} now; resume with the optimizer.freeze that "
                            "the run began with, or start another run from it with --init-from",
                            path, p.name, p.frozen ? "trained" : "frozen",
                            p.frozen ? "frozen" : "trained"));
  }
}

}  // namespace

void write_model(const std::string& folder, const model::ModelConfig& config,
                 const TranslateConfig& translate, const ParameterStore& store,
                 const Buffer& masters, const Corpora& corpora) {
  model::save_model(folder, config, translate, store, masters);
  save_tokenizers(folder, corpora.source, corpora.target);
  export_tokenizer(folder, config, corpora.source, corpora.target);
}

uint64_t checkpoint_bytes(const model::ModelConfig& config, TrainingStep& step,
                          const ParameterStore& store, const Corpora& corpora) {
  // About twelve files, the small ones of a few kilobytes, in blocks of up to 4 KiB.
  constexpr uint64_t kSmallFiles = uint64_t{96} << 10;
  const uint64_t times = model::nearest_hf_class(config) == model::HfClass::marian ? 1 : 2;
  return model::hf_weights_bytes(config) +
         model::SafetensorsWriter::file_bytes(optimizer_specs(step, store)) +
         tokenizer_bytes(corpora.source, times) + tokenizer_bytes(corpora.target, times) +
         kSmallFiles;
}

void write_checkpoint(const std::string& folder, const model::ModelConfig& config,
                      const TranslateConfig& translate, TrainingStep& step,
                      const ParameterStore& store, const Corpora& corpora,
                      const RunProgress& progress) {
  step.synchronize();
  write_model(folder, config, translate, store,
              step.average().data() ? step.average() : store.masters(), corpora);
  std::filesystem::create_directories(folder + "/training");
  write_optimizer(folder + "/training/optimizer.safetensors", step, store);
  write_json_file(folder + "/training/state.json", state_json(step.state(), progress, store));
}

void check_continues(const std::string& folder, const model::ModelConfig& config,
                     const Corpora& corpora) {
  model::ModelConfig saved = model::read_model_config(folder);
  saved.dropout = config.dropout;
  saved.attention_dropout = config.attention_dropout;
  saved.activation_dropout = config.activation_dropout;
  if (config.positions != model::PositionKind::learned) saved.max_positions = config.max_positions;
  const Json before = model::to_json(saved), now = model::to_json(config);
  for (const Json::Member& m : *now.if_object()) {
    const Json* old = before.find(m.key);
    if (old && old->dump() == m.value.dump()) continue;
    throw Error(Errc::invalid_argument, "resume",
                fmt::format("{}: the model there has {} {}, this configuration {}; resume with the "
                            "same model or start in a new folder",
                            folder, m.key, old ? old->dump() : "none", m.value.dump()));
  }
  const auto check = [&](const char* name, const data::Tokenizer& there, const data::Tokenizer& t) {
    if (there.fingerprint() == t.fingerprint()) return;
    throw Error(
        Errc::invalid_argument, "resume",
        fmt::format("{}/{} is not the tokenizer this run uses now; copy it into the run's data "
                    "folder or start in a new folder",
                    folder, name));
  };
  const Tokenizers there = load_tokenizers(folder);
  check("source.spm", there.source, corpora.source);
  check("target.spm", there.target, corpora.target);
}

int64_t best_step_of(const std::string& folder) {
  try {
    const Json state = read_json_file(folder + "/training/state.json");
    const Json* step = state.find("best_step");
    if (step != nullptr && step->if_int() != nullptr) return *step->if_int();
  } catch (const Error&) {  // a damaged checkpoint names none
  }
  return -1;
}

RunProgress read_checkpoint(const std::string& folder, TrainingStep& step, ParameterStore& store) {
  const std::string state_path = folder + "/training/state.json";
  const Json json = read_json_file(state_path);
  JsonFields f(json, "checkpoint", state_path);
  check_frozen(json, state_path, store);
  RunProgress p;
  StepState s = step.state();  // keeps the seed
  s.step = f.integer("step");
  s.rng[1] = static_cast<uint64_t>(f.integer("micro_step"));
  s.updates = static_cast<int32_t>(f.integer("updates"));
  s.loss_scale = static_cast<float>(f.number("loss_scale"));
  s.good_steps = static_cast<int32_t>(f.integer("good_steps"));
  s.bad_steps_in_row = static_cast<int32_t>(f.integer("bad_steps_in_row"));
  p.elapsed_s = f.number("elapsed_s");
  p.best_score = f.number_or("best_score", 0);
  // Earlier versions could call a score best that is no number; it is written as null.
  p.best_step = f.has("best_score") ? f.integer("best_step") : -1;
  p.validations_without_gain = f.integer("validations_without_gain");
  p.loader = data::PackerState::from_json(f.text("loader"));

  const model::SafetensorsReader file(folder + "/training/optimizer.safetensors");
  read_flat(file, "master", store, step.stream(), store.masters());
  for (const FlatArray& a : optimizer_arrays(step)) {
    read_flat(file, a.name, store, step.stream(), *a.buffer);
  }
  store.refresh_compute(step.stream());
  step.set_state(s);
  return p;
}

}  // namespace saturate::train
