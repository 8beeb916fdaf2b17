// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "model/adapter_folder.h"
#include "model/finite.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/model_folder.h"
#include "train/checkpoint_state.h"
#include "train/frozen.h"
#include "train/tokenizer_export.h"

namespace saturate::train {
namespace {

constexpr const char* kStateFile = "/training/optimizer.safetensors";
constexpr const char* kResidualFile = "/training/residual.safetensors";

// Every rank holds the sum of all residuals as long as it lives.
class AddedUpResiduals {
 public:
  explicit AddedUpResiduals(TrainingStep& step) : step_(step) { step.add_up_residuals(); }
  ~AddedUpResiduals() { step_.keep_own_residuals(); }
  AddedUpResiduals(const AddedUpResiduals&) = delete;

 private:
  TrainingStep& step_;
};

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
              {"texts", to_json(p.texts)},
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
                 const Corpora& corpora) {
  model::save_model(folder, config, translate, store);
  save_tokenizers(folder, corpora.source, corpora.target);
  export_tokenizer(folder, config, corpora.source, corpora.target);
}

uint64_t checkpoint_bytes(const model::ModelConfig& config, const StateOfRanks& state,
                          const Corpora& corpora) {
  // About twelve files, the small ones of a few kilobytes, in blocks of up to 4 KiB.
  constexpr uint64_t kSmallFiles = uint64_t{96} << 10;
  const uint64_t times = model::nearest_hf_class(config) == model::HfClass::marian ? 1 : 2;
  return (config.lora.empty() ? model::hf_weights_bytes(config)
                              : model::adapter_bytes(config.lora)) +
         model::SafetensorsWriter::file_bytes(state_tensors(state.all, state.store.purpose())) +
         (state.store.sharing().coded_copies
              ? model::SafetensorsWriter::file_bytes(
                    state_tensors(state.all, state.store.purpose(), StateFile::residual))
              : 0) +
         tokenizer_bytes(corpora.source, times) + tokenizer_bytes(corpora.target, times) +
         kSmallFiles;
}

// What all ranks have written.
void write_state_file(const std::string& path, StateFile which, const StateOfRanks& state,
                      const Stream& stream, const Together& ranks) {
  const auto tensors = state_tensors(state.all, state.store.purpose(), which);
  ranks.first([&] { model::SafetensorsWriter::begin(path, tensors); });
  const std::vector<Share> shares = shares_of_copies(state.store, state.layout, ranks);
  ranks.all([&] {
    model::SafetensorsWriter file(path, tensors, DurableFile::Join{});
    write_owned(file, tensors, state.store, stream, shares, which);
    file.commit();
  });
}

void write_weights(const std::string& folder, const model::ModelConfig& config,
                   const StateOfRanks& state, const Stream& stream, const Together& ranks) {
  const std::string path = folder + kStateFile;
  write_state_file(path, StateFile::optimizer, state, stream, ranks);
  ranks.all([&] {
    const model::SafetensorsReader file(path);
    const std::string shipped = saved_name(state.store.shipped());
    std::vector<float> values;
    const auto get = [&](const std::string& name) -> std::span<const float> {
      const model::TensorView* t = file.find(shipped + "/" + name);
      if (t == nullptr) t = file.find("master/" + name);  // frozen: it is its own average
      SAT_ASSERT(t != nullptr);
      values.resize(static_cast<size_t>(t->elements()));
      model::read_floats(*t, 0, values);
      model::require_finite(name, DType::f32, values.data(), values.size());
      return values;
    };
    if (!config.lora.empty()) {
      if (ranks.rank() == 0) model::save_adapter(folder, config, get);
      return;
    }
    if (ranks.rank() == 0) model::warn_of_start_row(config, get);
    model::write_hf_share(folder, config, get, {ranks.rank(), ranks.size()});
  });
}

void write_checkpoint(const std::string& folder, const model::ModelConfig& config,
                      const TranslateConfig& translate, TrainingStep& step,
                      const StateOfRanks& state, const Corpora& corpora,
                      const RunProgress& progress, const Together& ranks) {
  step.synchronize();
  ranks.first([&] {
    std::filesystem::create_directories(folder + "/training");
    if (config.lora.empty()) model::begin_hf(folder, config, translate);
    save_tokenizers(folder, corpora.source, corpora.target);
    export_tokenizer(folder, config, corpora.source, corpora.target);
    write_json_file(folder + "/training/state.json", state_json(step.state(), progress, state.all));
  });
  write_weights(folder, config, state, step.stream(), ranks);
  if (!state.store.sharing().coded_copies) return;
  const AddedUpResiduals sums(step);
  write_state_file(folder + kResidualFile, StateFile::residual, state, step.stream(), ranks);
}

namespace {

void check_tokenizers(const std::string& folder, const Corpora& corpora) {
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

// Whether the run trains adapters, as the one there did. Which modules have them is checked with the
// state, tensor by tensor.
bool check_adapter(const std::string& folder, const model::ModelConfig& config) {
  const model::Lora& now = config.lora;
  const bool was = model::is_adapter_folder(folder);
  const auto refuse = [&](const std::string& before, const std::string& is) {
    throw Error(
        Errc::invalid_argument, "resume",
        fmt::format("{}: the run there trained {}, this configuration {}; resume with its own "
                    "lora.* keys or start in a new folder",
                    folder, before, is));
  };
  const auto text = [](const model::Lora& l) {
    return fmt::format("adapters of rank {} and alpha {:g}{}", l.rank, l.alpha,
                       l.rank_stabilised ? " (rslora)" : "");
  };
  if (was == now.empty())
    refuse(was ? "adapters" : "a whole model", was ? "a whole model" : text(now));
  if (!was) return false;
  const model::AdapterConfig saved = model::read_adapter_config(folder);
  const model::Lora before{.linears = {},
                           .rank = saved.rank,
                           .alpha = saved.alpha,
                           .rank_stabilised = saved.rank_stabilised,
                           .base = {}};
  if (text(before) != text(now)) refuse(text(before), text(now));
  return true;
}

}  // namespace

void check_continues(const std::string& folder, const model::ModelConfig& config,
                     const Corpora& corpora) {
  if (check_adapter(folder, config)) return check_tokenizers(folder, corpora);
  model::ModelConfig saved = model::read_model_config(folder);
  saved.dropout = config.dropout;
  saved.attention_dropout = config.attention_dropout;
  saved.activation_dropout = config.activation_dropout;
  saved.sampling = config.sampling;  // said to others alone
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
  check_tokenizers(folder, corpora);
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

namespace {

// Of runs whose sums travel in 8 bits, what rounding had taken from them by then.
void read_residual(const std::string& path, TrainingStep& step, ParameterStore& store) {
  const bool saved = std::filesystem::exists(path), kept = store.sharing().coded_copies;
  if (saved && kept) {
    read_owned(model::SafetensorsReader(path), store, step.stream(), StateFile::residual);
    step.keep_own_residuals();
  } else if (saved) {
    log_info(
        fmt::format("{} is passed over: it is what sums in 8 bits still had to add, less than "
                    "one rounding of each gradient, and this layout sums in full",
                    path));
  } else if (kept) {
    log_info(
        fmt::format("{}: the run summed in full until here, so sums in 8 bits begin with "
                    "nothing left over",
                    path));
  }
}

}  // namespace

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
  p.texts = text_identity_from(json, state_path);

  read_owned(model::SafetensorsReader(folder + kStateFile), store, step.stream());
  read_residual(folder + kResidualFile, step, store);
  step.set_state(s);
  return p;
}

}  // namespace saturate::train
