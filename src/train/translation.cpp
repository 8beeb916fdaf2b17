// SPDX-License-Identifier: Apache-2.0
#include "train/translation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/timed_part.h"
#include "model/adapter_folder.h"
#include "model/folder_manifest.h"
#include "model/generation_config.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/marian_npz.h"
#include "model/model_folder.h"
#include "train/checkpoint_store.h"
#include "train/model_weights.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

}  // namespace

namespace {

// With a model in it, or an adapter alone.
std::string folder_of_weights(const std::string& path) {
  for (const std::string& folder : {path, path + "/model"}) {
    if (fs::exists(folder + "/config.json") || model::is_adapter_folder(folder) ||
        model::is_marian_folder(folder))
      return folder;
  }
  if (!fs::exists(path)) {
    throw Error(Errc::io, "model", path + " does not exist; give the folder of a run or model");
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
                  "checkpoint, nor an .npz of Marian; give the folder of a run or of a Hugging "
                  "Face model",
                  path));
}

std::string base_of(const std::string& adapter) {
  const std::string base = model::read_adapter_config(adapter).base;
  for (const fs::path& place : {fs::path(base), fs::path(adapter) / base}) {
    if (!base.empty() && fs::exists(place)) return folder_of_weights(place.string());
  }
  throw Error(Errc::io, "model",
              fmt::format("{} is an adapter of {}, which is no folder here; give that model with "
                          "--model and this folder with --adapter",
                          adapter, base.empty() ? "a model that it does not name" : base));
}

}  // namespace

std::string model_folder(const std::string& path) {
  std::string folder = folder_of_weights(path);
  if (!model::is_adapter_folder(folder)) return folder;
  throw Error(
      Errc::invalid_argument, "model",
      fmt::format("{} is an adapter of {}, no model; make one of them with saturate merge --model "
                  "{} --out FOLDER, and give that",
                  folder, model::read_adapter_config(folder).base, path));
}

ModelPlace model_place(const std::string& path, const std::string& adapter) {
  ModelPlace place{folder_of_weights(path), adapter.empty() ? "" : folder_of_weights(adapter)};
  const bool is_adapter = model::is_adapter_folder(place.folder);
  if (!place.adapter.empty()) {
    if (!is_adapter && model::is_adapter_folder(place.adapter)) return place;
    throw Error(Errc::invalid_argument, "model",
                is_adapter
                    ? fmt::format("--model {} is an adapter already; give its base with --model",
                                  place.folder)
                    : fmt::format("--adapter {} holds a whole model, or no adapter_config.json",
                                  place.adapter));
  }
  if (is_adapter) place = {base_of(place.folder), place.folder};
  if (model::is_adapter_folder(place.folder)) {
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format("{} is an adapter of an adapter, {}; merge that one into its base first "
                    "(saturate merge)",
                    place.adapter, place.folder));
  }
  return place;
}

namespace {

Tokenizers plain_ids(const model::ModelConfig& c) {
  const bool translates = c.kind == model::ModelKind::encoder_decoder;
  return {data::Tokenizer::ids(translates ? c.vocab_source : c.vocab_target, c.eos_id, c.pad_id),
          data::Tokenizer::ids(c.vocab_target, c.eos_id, c.pad_id)};
}

// What texts of a model begin and end with.
void frame_texts(LoadedModel& m, const LoadHooks& hooks) {
  const bool given = !hooks.source_language.empty() || !hooks.target_language.empty();
  if (m.config.kind != model::ModelKind::encoder_decoder) {
    if (!given) return;
    throw Error(Errc::invalid_argument, "model",
                m.folder + " is a language model, it has no pair of languages");
  }
  m.languages = read_languages(
      m.folder, m.config,
      hooks.ids && given ? load_tokenizers_of(m.folder, m.config).target : m.tokenizers.target);
  Languages& l = m.languages;
  if (given && l.told == Languages::Told::nothing) {
    throw Error(Errc::invalid_argument, "model",
                m.folder +
                    " names no languages to choose from; leave --source-lang and "
                    "--target-lang out");
  }
  if (!hooks.source_language.empty() && !l.needs_source()) {
    throw Error(Errc::invalid_argument, "model",
                m.folder + " takes texts of its languages as they are; leave --source-lang out");
  }
  // id_of says what is wrong with a code.
  for (const auto& [wanted, side] :
       {std::pair{&hooks.source_language, &l.source}, {&hooks.target_language, &l.target}}) {
    if (wanted->empty()) continue;
    l.id_of(*wanted);
    *side = l.code_of(*wanted);
  }
  if (l.target_is_start) m.config.decoder_start_id = l.id_of(l.target);
  const auto eos = static_cast<int32_t>(m.config.eos_id);
  const data::TextFrame frame = l.source_frame(l.source, l.target, eos);
  if (!frame.before.empty() || frame.after.size() > 1)
    m.tokenizers.source =
        m.tokenizers.source.framed(frame.before, eos, m.config.pad_id, frame.after);
  std::vector<int32_t> begin = l.target_begin(l.target);
  if (const int64_t forced = read_forced_first(m.folder, m.config);
      forced >= 0 && begin.empty() && !l.target_is_start)
    begin = {static_cast<int32_t>(forced)};
  if (!begin.empty())
    m.tokenizers.target = m.tokenizers.target.framed(begin, eos, m.config.pad_id, {eos});
}

// Everything of the folder but the weights, which are only looked at.
LoadedModel read_text_side(const std::string& folder, const LoadHooks& hooks) {
  const TimedPart part("configuration and tokenizers");
  const model::ModelConfig config = model::read_model_config(folder);
  LoadedModel m{.folder = folder,
                .config = config,
                .translate = model::read_translate_config(folder),
                .tokenizers = hooks.ids ? plain_ids(config) : load_tokenizers_of(folder, config),
                .languages = {},
                .store = nullptr,
                .transformer = nullptr};
  frame_texts(m, hooks);
  model::check_hf_weights(folder, m.config);  // before room is made for what config.json claims
  return m;
}

}  // namespace

model::TranslatorOptions translator_options(const TranslateConfig& config, int64_t max_source,
                                            int64_t beam) {
  model::TranslatorOptions o;
  o.beam = static_cast<int>(beam);
  o.length_penalty = static_cast<float>(config.length_penalty);
  o.max_source = max_source;
  const double most = config.max_length_factor * static_cast<double>(max_source);
  o.max_target = std::max<int64_t>(1, static_cast<int64_t>(most) + config.max_length_offset);
  o.length_factor = static_cast<float>(config.max_length_factor);
  o.length_offset = config.max_length_offset;
  o.source_rows = std::max(config.batch_tokens, max_source);
  // As many sentences as share the source rows at a common length of 16.
  o.sentences = std::clamp<int64_t>(o.source_rows / 16, 1, 512 / std::max<int64_t>(1, beam / 2));
  return o;
}

std::vector<int32_t> clip_source(std::vector<int32_t> ids, int64_t limit,
                                 std::span<const int32_t> end) {
  if (std::ssize(ids) <= limit) return ids;
  const auto most = static_cast<size_t>(limit);
  ids.resize(most);
  const std::span<const int32_t> kept = end.last(std::min(end.size(), most));
  std::ranges::copy(kept, ids.end() - std::ssize(kept));
  return ids;
}

namespace {

// Starts the device, reads the files and runs the hooks side by side.
LoadedModel load_folder(const ModelPlace& place, const std::string& device_name,
                        const std::string& precision, const LoadHooks& hooks) {
  std::shared_future<Device> device = std::async(std::launch::async, [&] {
    const TimedPart part("device: driver and context");
    const Device found = parse_device(device_name);
    use_device(found);
    return found;
  });
  // Of the text side weights need nothing but the language that some decoders start with.
  std::future<ModelWeights> beside;
  if (place.adapter.empty() && hooks.adapters.empty() && hooks.target_language.empty()) {
    beside = std::async(std::launch::async, [&] {
      if (device.get().is_cuda()) return ModelWeights{};
      const model::ModelConfig config = model::read_model_config(place.folder);
      model::check_hf_weights(place.folder, config);  // before room is made for what it claims
      return read_on_cpu(place.folder, config, precision, nullptr);
    });
  }
  LoadedModel m = read_text_side(place.folder, hooks);
  std::optional<model::Adapter> adapter;
  if (!place.adapter.empty()) {
    adapter = model::read_adapter(place.adapter, m.folder, m.config);
    log_info(fmt::format("adapter {} of rank {} beside {} projections, merged", place.adapter,
                         adapter->lora.rank, adapter->lora.linears.size()));
  }
  model::ModelConfig layout = m.config;
  if (!hooks.adapters.empty()) {
    if (m.config.kind != model::ModelKind::decoder_only || adapter) {
      throw Error(
          Errc::invalid_argument, "model",
          fmt::format("{} is {}; adapters lie side by side beside a language model alone, and "
                      "else one is merged into it",
                      place.adapter.empty() ? place.folder : place.adapter,
                      adapter ? "an adapter itself" : "a translation model"));
    }
    std::vector<model::Adapter> all;
    for (const std::string& folder : hooks.adapters)
      all.push_back(model::read_adapter(folder, m.folder, m.config));
    adapter = model::side_by_side(all);
    layout.lora = adapter->lora;
    log_info(
        fmt::format("{} adapters beside {} projections", all.size(), layout.lora.linears.size()));
  }
  const model::Adapter* const merged = adapter ? &*adapter : nullptr;
  if (hooks.on_text) hooks.on_text(m);
  const auto take = [&](ModelWeights w) {
    m.store = std::move(w.store), m.transformer = std::move(w.transformer);
  };
  const auto finish_on_cpu = [&] {
    take(beside.valid() ? beside.get() : read_on_cpu(m.folder, layout, precision, merged));
    SAT_ASSERT(m.transformer->config().decoder_start_id == m.config.decoder_start_id);
    if (hooks.on_memory) hooks.on_memory(m);
    return std::move(m);
  };
  const bool is_cpu = device.wait_for(std::chrono::seconds(0)) == std::future_status::ready &&
                      !device.get().is_cuda();
  if (is_cpu) return finish_on_cpu();  // the memory of the device is where the weights are read to
  const std::shared_future<void> memory = std::async(std::launch::async, [&] {
    if (device.get().is_cuda()) take(make_weights(layout, device.get(), precision));
  });
  auto planned = std::async(std::launch::async, [&] {
    memory.get();
    if (!device.get().is_cuda()) return;
    const TimedPart part("plans and kernels");
    if (hooks.on_memory) hooks.on_memory(m);
  });
  const std::vector<float> masters = model::read_weights(m.folder, layout, merged);
  memory.get();
  if (!device.get().is_cuda()) {  // that was not known in time
    planned.get();
    return finish_on_cpu();
  }
  // What the hook runs must be finite. In 16 bits all matrices are zero until they are refreshed.
  if (m.store->compute_type() == m.store->wide_type()) planned.wait();
  const Stream stream(m.store->device());
  {
    const TimedPart part("weights to the device");
    m.store->set_all(stream, masters);
  }
  planned.get();
  m.store->refresh_compute(stream);
  stream.synchronize();
  return m;
}

}  // namespace

LoadedModel load_model(const std::string& path, const std::string& device,
                       const std::string& precision, const LoadHooks& hooks,
                       const std::string& adapter) {
  const ModelPlace place = model_place(path, adapter);
  // Beside the loading: it reads every byte once more.
  auto files = std::async(std::launch::async, [&place] {
    const TimedPart part("checksums of the files");
    model::check_model_files(place.folder);
    if (!place.adapter.empty()) model::check_model_files(place.adapter);
  });
  try {
    LoadedModel m = load_folder(place, device, precision, hooks);
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
