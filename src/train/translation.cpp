// SPDX-License-Identifier: Apache-2.0
#include "train/translation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <future>

#include "base/error.h"
#include "base/log.h"
#include "model/folder_manifest.h"
#include "model/generation_config.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/model_folder.h"
#include "train/checkpoint_store.h"
#include "train/model_setup.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

std::string model_folder(const std::string& path) {
  if (fs::exists(path + "/config.json")) return path;
  if (fs::exists(path + "/model/config.json")) return path + "/model";
  if (!fs::exists(path)) {
    throw Error(Errc::io, "model", path + " does not exist; give --model the folder of a run");
  }
  const CheckpointStore checkpoints(path);
  std::vector<std::string> problems;
  std::optional<Checkpoint> found = checkpoints.best();
  if (found && CheckpointStore::damage(found->folder)) found.reset();
  if (!found) found = checkpoints.newest_valid(problems);
  for (const std::string& p : problems) log_warning("damaged checkpoint passed over: " + p);
  if (found) {
    log_info(fmt::format("{} has no model/; its checkpoint {} is taken", path, found->folder));
    return found->folder;
  }
  throw Error(
      Errc::io, "model",
      fmt::format("{} holds no model: neither config.json, nor model/config.json, nor a whole "
                  "checkpoint; give --model the folder of a run or of a Hugging Face model",
                  path));
}

void check_vocabulary(const LoadedModel& m) {
  const auto differs = [&](const char* side, int64_t model, int64_t tokenizer) {
    if (model == tokenizer) return;
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format("{}: the model has a {} vocabulary of {} and its tokenizer {}; the files are "
                    "not of one training run",
                    m.folder, side, model, tokenizer));
  };
  differs("target", m.config.vocab_target, m.tokenizers.target.vocab_size());
  if (m.config.kind == model::ModelKind::encoder_decoder) {
    differs("source", m.config.vocab_source, m.tokenizers.source.vocab_size());
  }
}

LoadedModel load_folder(const std::string& folder, Device device, const std::string& precision) {
  LoadedModel m{
      .folder = folder,
      .config = model::read_model_config(folder),
      .translate = model::read_translate_config(folder),
      .tokenizers = load_tokenizers(folder),
      .store = std::make_unique<ParameterStore>(device, resolve_precision(precision, device)),
      .transformer = nullptr};
  check_vocabulary(m);
  model::check_hf_weights(folder, m.config);  // before room is made for what config.json claims
  m.transformer = std::make_unique<model::Transformer>(m.config, *m.store);
  m.store->allocate(ParameterStore::Purpose::inference);
  m.transformer->make_tables(*m.store);
  model::load_weights(folder, m.config, *m.store);
  return m;
}

}  // namespace

model::TranslatorOptions translator_options(const TranslateConfig& config, int64_t max_source,
                                            int64_t beam) {
  model::TranslatorOptions o;
  o.beam = static_cast<int>(beam);
  o.length_penalty = static_cast<float>(config.length_penalty);
  o.max_source = max_source;
  o.max_target = static_cast<int64_t>(config.max_length_factor * static_cast<double>(max_source)) +
                 config.max_length_offset;
  o.length_factor = static_cast<float>(config.max_length_factor);
  o.length_offset = config.max_length_offset;
  o.source_rows = std::max(config.batch_tokens, max_source);
  // As many sentences as share the source rows at a common length of 16.
  o.sentences = std::clamp<int64_t>(o.source_rows / 16, 1, 512 / std::max<int64_t>(1, beam / 2));
  return o;
}

std::vector<int32_t> clip_source(std::vector<int32_t> ids, int64_t limit, int32_t eos) {
  if (static_cast<int64_t>(ids.size()) > limit) {
    ids.resize(static_cast<size_t>(limit));
    ids.back() = eos;
  }
  return ids;
}

LoadedModel load_model(const std::string& path, const std::string& device,
                       const std::string& precision) {
  const Device where = parse_device(device);
  const std::string folder = model_folder(path);
  // Beside the loading: it reads every byte once more.
  auto files = std::async(std::launch::async, model::check_model_files, folder);
  try {
    LoadedModel m = load_folder(folder, where, precision);
    files.get();
    return m;
  } catch (const Error&) {
    if (files.valid()) files.get();  // that a file is damaged explains the rest
    throw;
  }
}

std::string decode_translation(const data::Tokenizer& target, size_t source_tokens,
                               std::span<const int32_t> ids) {
  if (source_tokens <= 1) return {};  // end of sentence only
  std::string text = target.decode(ids);
  std::replace(text.begin(), text.end(), '\n', ' ');  // byte tokenizers can write any byte
  return text;
}

}  // namespace saturate::train
