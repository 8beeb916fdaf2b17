// SPDX-License-Identifier: Apache-2.0
#include "train/initial_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/folder_manifest.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/model_folder.h"
#include "model/safetensors.h"
#include "train/checkpoint_store.h"
#include "train/model_setup.h"
#include "train/translation.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

// As config.toml has it, so that a run can be resumed from any folder.
std::string whole_path(const std::string& path) {
  if (path.empty()) return path;
  const std::string whole = fs::absolute(path).lexically_normal().string();
  return whole.ends_with('/') ? whole.substr(0, whole.size() - 1) : whole;
}

std::string record_path(const std::string& out) { return out + "/data/init.json"; }

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "init", what);
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(model::name_of(value));
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return value.empty() ? "self_attention" : fmt::format("{}", fmt::join(value, ","));
  } else {
    return fmt::format("{}", value);
  }
}

// Compares what keys ask for with what the folder has. A preset speaks for every property.
class Agreement {
 public:
  Agreement(const RunConfig& config, const std::string& folder)
      : preset_(config.model.preset), folder_(folder) {}

  template <class T>
  void need(const char* key, bool given, const T& wanted, const T& found) const {
    if (wanted == found || (!given && preset_ == "auto")) return;
    const std::string name = given ? key : fmt::format("model.preset = {}: {}", preset_, key);
    refuse(fmt::format(
        "{} is {}, the model in {} has {}; leave {} out to train that model, or "
        "leave --init-from out to train one of this shape from the beginning",
        name, text_of(wanted), folder_, text_of(found), given ? "the key" : "the preset"));
  }

 private:
  const std::string& preset_;
  const std::string& folder_;
};

void check_model_keys(const RunConfig& config, const std::string& folder,
                      const model::ModelConfig& found) {
  const ArchitectureConfig& given = config.model;
  const Agreement a(config, folder);
  if (given.preset != "auto") {
    const auto kind = model::model_preset(given.preset).kind;
    a.need("kind", false, kind, found.kind);
  }
  const model::ModelConfig wanted =
      given.preset == "auto" ? model_with(config, found) : model_with(config);
  a.need("model.d_model", given.d_model.has_value(), wanted.d_model, found.d_model);
  a.need("model.encoder_layers", given.encoder_layers.has_value(), wanted.encoder_layers,
         found.encoder_layers);
  a.need("model.decoder_layers", given.decoder_layers.has_value(), wanted.decoder_layers,
         found.decoder_layers);
  a.need("model.heads", given.heads.has_value(), wanted.heads, found.heads);
  a.need("model.kv_heads", given.kv_heads.has_value(), wanted.kv_heads, found.kv_heads);
  a.need("model.ffn", given.ffn.has_value(), wanted.ffn, found.ffn);
  a.need("model.norm", given.norm.has_value(), wanted.norm, found.norm);
  a.need("model.norm_eps", given.norm_eps.has_value(), wanted.norm_eps, found.norm_eps);
  a.need("model.norm_position", given.norm_position.has_value(), wanted.norm_position,
         found.norm_position);
  a.need("model.activation", given.activation.has_value(), wanted.activation, found.activation);
  a.need("model.gated", given.gated.has_value(), wanted.gated, found.gated);
  a.need("model.mixers", !given.mixers.empty(), wanted.mixers, found.mixers);
  a.need("model.experts", given.experts.has_value(), wanted.experts, found.experts);
  a.need("model.experts_per_token", given.experts_per_token.has_value(), wanted.experts_per_token,
         found.experts_per_token);
  a.need("model.expert_every", given.expert_every.has_value(), wanted.expert_every,
         found.expert_every);
  a.need("model.positions", given.positions.has_value(), wanted.positions, found.positions);
  a.need("model.bias", given.bias.has_value(), wanted.biases, found.biases);
  a.need("model.tie_embeddings", given.tie_embeddings.has_value(), wanted.tied_output,
         found.tied_output);
  // A learned table has its rows; of computed positions there may be more or fewer.
  if (found.positions != model::PositionKind::learned) return;
  if (given.max_positions)
    a.need("model.max_positions", true, *given.max_positions, found.max_positions);
  if (found.kind == model::ModelKind::encoder_decoder &&
      config.data.max_length.value_or(0) > found.max_positions) {
    refuse(
        fmt::format("data.max_length is {}, the model in {} has learned positions for {}; set "
                    "data.max_length={}",
                    *config.data.max_length, folder, found.max_positions, found.max_positions));
  }
}

Tokenizers given_tokenizers(const std::string& paths) {
  const size_t comma = paths.find(',');
  const data::Tokenizer source = data::Tokenizer::load(paths.substr(0, comma));
  return {source,
          comma == std::string::npos ? source : data::Tokenizer::load(paths.substr(comma + 1))};
}

// A language model has one tokenizer: load_tokenizers gives it on both sides.
void check_tokenizer_keys(const RunConfig& config, const std::string& folder,
                          const Tokenizers& found) {
  const char* reason =
      "the weights hold one row for each piece of their own vocabulary, and no other piece has a "
      "row to start from";
  if (config.data.tokenizer_type == "byte" && !found.target.is_bytes()) {
    refuse(
        fmt::format("data.tokenizer_type is byte, the model in {} has a vocabulary of {} pieces; "
                    "leave the key out: {}",
                    folder, found.target.vocab_size(), reason));
  }
  if (config.data.vocab_size.value_or(INT64_MAX) < found.target.vocab_size()) {
    refuse(
        fmt::format("data.vocab_size is {}, the model in {} has a vocabulary of {}; leave the key "
                    "out: {}",
                    *config.data.vocab_size, folder, found.target.vocab_size(), reason));
  }
  if (config.data.tokenizer == "auto") return;
  const Tokenizers given = given_tokenizers(config.data.tokenizer);
  if (given.source.fingerprint() == found.source.fingerprint() &&
      given.target.fingerprint() == found.target.fingerprint()) {
    return;
  }
  refuse(fmt::format(
      "data.tokenizer = {} has {} pieces and is not the tokenizer of {}, which has "
      "{}; leave the key out: {}",
      config.data.tokenizer, given.target.vocab_size(), folder, found.target.vocab_size(), reason));
}

// What a model lacks comes from its tokenizer, which decides where sentences end in training.
void settle_ids(const std::string& folder, const Tokenizers& tokenizers, model::ModelConfig& m) {
  const auto settle = [&](const char* name, int64_t& id, int64_t tokenizer) {
    if (id >= 0 && id != tokenizer) {
      refuse(
          fmt::format("{}/config.json: {} is {}, its tokenizer says {}; the files are not of one "
                      "model",
                      folder, name, id, tokenizer));
    }
    id = tokenizer;
  };
  settle("eos_token_id", m.eos_id, tokenizers.target.eos_id());
  settle("pad_token_id", m.pad_id, tokenizers.target.pad_id());
  if (m.bos_id < 0) m.bos_id = m.eos_id;
  if (m.kind == model::ModelKind::encoder_decoder)
    settle("decoder_start_token_id", m.decoder_start_id, tokenizers.target.pad_id());
}

InitialModel open_folder(const RunConfig& config, const std::string& from) {
  const std::string folder = model_folder(from);
  model::check_model_files(folder);
  const model::ModelConfig found = model::read_model_config(folder);
  if (const char* why = model::training_refusal(found))
    refuse(fmt::format("{} cannot be trained: {}", folder, why));
  check_model_keys(config, folder, found);
  InitialModel initial{.from = from,
                       .folder = folder,
                       .weights = {},
                       .config = found,
                       .tokenizers = load_tokenizers_of(folder, found)};
  const bool kept =
      initial.tokenizers.target.is_json() && found.kind == model::ModelKind::decoder_only;
  if (initial.tokenizers.target.is_foreign() && !kept) {
    refuse(fmt::format(
        "{} has a tokenizer that a run does not keep beside its checkpoints yet "
        "(tokenizer.model, spiece.model, or the tokenizer.json of a model that translates); such "
        "a model can be run and evaluated",
        folder));
  }
  if (initial.tokenizers.target.eos_id() < 0) {
    refuse(
        fmt::format("{}/config.json has no eos_token_id, which training puts behind every text; "
                    "add the id of its end-of-text token there",
                    folder));
  }
  check_tokenizer_keys(config, folder, initial.tokenizers);
  if (found.kind == model::ModelKind::encoder_decoder && found.shared_embeddings &&
      !config.data.shared_vocabulary) {
    refuse(
        fmt::format("data.shared_vocabulary is false, the model in {} shares one; leave the key "
                    "out",
                    folder));
  }
  settle_ids(folder, initial.tokenizers, initial.config);
  model::check_hf_weights(folder, found);
  initial.config.lora = adapters_of(config, model::tensor_mapping_of(folder, found), folder);
  return initial;
}

// What the run in `out` kept; nothing when it began with random weights.
std::optional<InitialModel> read_record(const std::string& out) {
  const std::string path = record_path(out);
  if (!fs::exists(path)) return std::nullopt;
  const Json json = read_json_file(path);
  JsonFields f(json, "resume", path);
  const Json* config = json.find("model");
  if (config == nullptr) f.fail("model", "it is missing; restore the file");
  return InitialModel{.from = f.text("from"),
                      .folder = {},
                      .weights = f.text("weights"),
                      .config = model::model_config_from_json(*config, path),
                      .tokenizers = load_tokenizers(out + "/data")};
}

}  // namespace

std::optional<InitialModel> find_initial_model(const RunConfig& config) {
  const std::string asked = whole_path(config.init.from);
  if (config.resume && !CheckpointStore(config.out).list().empty()) {
    std::optional<InitialModel> kept = read_record(config.out);
    if (!asked.empty() && (!kept || kept->from != asked)) {
      refuse(
          fmt::format("init.from = {}, but the run in {} began with {}; leave it out to resume "
                      "that run, or choose another --out",
                      asked, config.out, kept ? kept->from : "random weights"));
    }
    if (kept) check_model_keys(config, config.out, kept->config);
    if (kept && config.lora.rank > 0) {  // its base is no part of the run
      kept->folder = model_folder(kept->from);
      const auto found = model::read_model_config(kept->folder);
      kept->config.lora =
          adapters_of(config, model::tensor_mapping_of(kept->folder, found), kept->folder);
    }
    return kept;
  }
  if (asked.empty()) return std::nullopt;
  return open_folder(config, asked);
}

void settle(RunConfig& config, const InitialModel& initial) {
  config.init.from = initial.from;
  if (config.data.max_length) return;
  const model::ModelConfig& m = initial.config;
  const bool lm = m.kind == model::ModelKind::decoder_only;
  config.data.max_length = longest_sentence(config);
  if (lm || m.positions == model::PositionKind::learned)
    config.data.max_length =
        lm ? m.max_positions : std::min(*config.data.max_length, m.max_positions);
}

model::ModelConfig resolve_initial(const RunConfig& config, const InitialModel& initial) {
  model::ModelConfig m = initial.config;
  const model::ModelConfig wanted = model_with(config, m);
  m.dropout = wanted.dropout;
  m.attention_dropout = wanted.attention_dropout;
  m.activation_dropout = wanted.activation_dropout;
  if (m.positions != model::PositionKind::learned) {
    m.max_positions = wanted.max_positions;
    if (m.kind == model::ModelKind::encoder_decoder)
      m.max_positions = std::max(m.max_positions, longest_sentence(config));
  }
  model::validate(m);
  return m;
}

void load_initial_weights(InitialModel& initial, ParameterStore& store,
                          parallel::Communicator& ranks) {
  // With the folder's own configuration, which names the tensors.
  const model::ModelConfig config = model::read_model_config(initial.folder);
  ParameterStore places({}, DType::f32);  // of what read_weights returns
  const model::Transformer of_them(config, places);
  const std::vector<float> masters = model::read_weights(initial.folder, config);
  const Stream stream(store.device());
  std::vector<uint64_t> hashes;  // of what this rank has read, whatever it keeps of it
  for (const ParameterSpec& p : places.specs()) {
    const std::span values(masters.data() + p.offset, static_cast<size_t>(p.size()));
    hashes.push_back(model::xxh3(std::as_bytes(values)));
    const ParameterId id = store.find(p.name);
    if (id.index < 0) continue;  // another stage's
    if (store.spec(id).whole.rows == 0) {
      store.set(stream, id, values.data());
      continue;
    }
    std::vector<float> part;  // of a cut one; rows that pad a vocabulary may be more than here
    for (const parallel::ShardRun& run : store.spec(id).whole.runs)
      for (int64_t e = run.global_offset; e < run.global_offset + run.length; ++e)
        part.push_back(e < p.size() ? values[static_cast<size_t>(e)] : 0.0f);
    store.set(stream, id, part.data());
  }
  store.refresh_compute(stream);
  stream.synchronize();
  const uint64_t all = model::xxh3(std::as_bytes(std::span(hashes)));
  const std::string before = std::exchange(initial.weights, fmt::format("{:016x}", all));
  if (!before.empty() && before != initial.weights) {
    refuse(fmt::format(
        "{} holds other weights now ({}) than when this run began ({}), and adapters fit those "
        "alone; restore the folder",
        initial.folder, initial.weights, before));
  }
  // A double holds 53 bits.
  const auto mine = static_cast<double>(all >> 11);
  const double highest = ranks.all_reduce_max(mine), lowest = -ranks.all_reduce_max(-mine);
  if (highest != lowest) {
    refuse(
        fmt::format("the ranks read different weights from init.from = {}; put the same folder "
                    "on every machine",
                    initial.from));
  }
}

void keep_initial_model(const std::string& out, const InitialModel& initial) {
  write_json_file(record_path(out), Json{{"from", initial.from},
                                         {"weights", initial.weights},
                                         {"model", to_json(initial.config)}});
}

}  // namespace saturate::train
