// SPDX-License-Identifier: Apache-2.0
#include "model/marian_npz.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/flat_yaml.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;
using kernels::ActivationKind;

constexpr std::string_view kConfig = "special:model.yml";
// Of the row that stands for no word: no probability in fp32 or bf16, and finite.
constexpr float kNever = -1e4f;

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(Errc::invalid_argument, "marian", fmt::format("{}: {}", where, why));
}

const TensorView* find(std::span<const TensorView> tensors, std::string_view name) {
  const auto at = std::ranges::find(tensors, name, &TensorView::name);
  return at == tensors.end() ? nullptr : &*at;
}

// "special:model.yml", an array of characters that ends with a zero.
class Options {
 public:
  Options(std::span<const TensorView> tensors, const std::string& where) : where_(where) {
    const TensorView* const text = find(tensors, kConfig);
    if (text == nullptr || safetensors_element_bytes(text->dtype) != 1)
      refuse(where, fmt::format("it has no \"{}\", so it is no model that Marian wrote", kConfig));
    const std::string_view all(reinterpret_cast<const char*>(text->data), text->bytes);
    entries_ =
        parse_flat_yaml(all.substr(0, all.find('\0')), fmt::format("{}, {}", where, kConfig));
  }

  std::string text(std::string_view key, std::string_view fallback) const {
    const YamlEntry* const e = find_entry(entries_, key);
    if (e == nullptr || (e->values.empty() && !e->is_list)) return std::string(fallback);
    return fmt::format("{}", fmt::join(e->values, ", "));
  }
  int64_t number(std::string_view key, std::optional<int64_t> fallback = {}) const {
    const std::string value = text(key, "");
    int64_t n = 0;
    const char* const end = value.data() + value.size();
    if (value.empty() && fallback) return *fallback;
    if (value.empty() || std::from_chars(value.data(), end, n).ptr != end)
      refuse(where_, fmt::format("{} is \"{:.40}\", a number is needed", key, value));
    return n;
  }
  bool flag(std::string_view key) const { return text(key, "false") == "true"; }
  // Options with one value that is computed here; `allowed` are others that mean the same.
  void need(std::string_view key, std::string_view value,
            std::initializer_list<std::string_view> allowed = {}) const {
    const std::string given = text(key, value);
    if (given == value || std::ranges::find(allowed, given) != allowed.end()) return;
    throw Error(
        Errc::unsupported, "marian",
        fmt::format("{}: {} is \"{:.80}\"; Saturate reads Marian's Transformers with \"{}\"",
                    where_, key, given, value));
  }
  [[noreturn]] void fail(std::string_view key, std::string_view rule) const {
    throw Error(Errc::unsupported, "marian",
                fmt::format("{}: {} is \"{:.80}\"; {}", where_, key, text(key, ""), rule));
  }

 private:
  const std::string& where_;
  std::vector<YamlEntry> entries_;
};

void need_known_options(const Options& o) {
  o.need("type", "transformer");
  o.need("transformer-decoder-autoreg", "self-attention");
  o.need("transformer-ffn-depth", "2");
  o.need("transformer-decoder-ffn-depth", "0", {"2"});
  o.need("transformer-decoder-dim-ffn", "0", {o.text("transformer-dim-ffn", "")});
  o.need("transformer-tied-layers", "");
  o.need("lemma-dim-emb", "0");
  for (const char* key :
       {"transformer-no-projection", "transformer-train-position-embeddings", "transformer-pool",
        "ulr", "right-left", "output-omit-bias", "transformer-rnn-projection"})
    o.need(key, "false");
}

// Norms before or after the sublayers, and of embeddings: letters for dropout, addition and norm.
void read_norms(const Options& o, ModelConfig& c) {
  const bool pre = o.text("transformer-preprocess", "") == "n";
  o.need("transformer-preprocess", pre ? "n" : "");
  o.need("transformer-postprocess", pre ? "da" : "dan");
  o.need("transformer-postprocess-top", pre ? "n" : "");
  o.need("transformer-postprocess-emb", "d", {"", "n", "nd"});
  c.norm_position = pre ? NormPosition::pre : NormPosition::post;
  c.final_norm = pre;
  c.embedding_norm = o.text("transformer-postprocess-emb", "d").starts_with("n");
}

// Rows of a table of embeddings and the one that Marian lacks.
int64_t vocabulary(std::span<const TensorView> tensors, std::string_view name,
                   const std::string& where) {
  const TensorView* const t = find(tensors, name);
  if (t == nullptr || t->shape.size() != 2)
    refuse(where, fmt::format("it has no matrix \"{}\", which its options ask for", name));
  return t->shape[0] + 1;
}

// Names within a layer; of norms without what stands before and behind.
struct Name {
  std::string_view ours, marian;
};
constexpr std::array<Name, 13> kNames = {{{"self_attn.q_proj", "self_?q"},
                                          {"self_attn.k_proj", "self_?k"},
                                          {"self_attn.v_proj", "self_?v"},
                                          {"self_attn.out_proj", "self_?o"},
                                          {"self_attn_layer_norm", "self_Wo_ln_"},
                                          {"encoder_attn.q_proj", "context_?q"},
                                          {"encoder_attn.k_proj", "context_?k"},
                                          {"encoder_attn.v_proj", "context_?v"},
                                          {"encoder_attn.out_proj", "context_?o"},
                                          {"encoder_attn_layer_norm", "context_Wo_ln_"},
                                          {"fc1", "ffn_?1"},
                                          {"fc2", "ffn_?2"},
                                          {"final_layer_norm", "ffn_ffn_ln_"}}};

// "model.encoder.layers.0.fc1.weight" as Marian says it, "encoder_l1_ffn_W1".
std::string marian_name(std::string_view ours, bool pre) {
  ours.remove_prefix(std::string_view("model.").size());
  const std::string side(ours.substr(0, ours.find('.')));
  ours.remove_prefix(side.size() + 1);
  const bool weight = ours.ends_with(".weight");
  ours = ours.substr(0, ours.rfind('.'));
  const std::string_view vector = weight ? "scale" : "bias";
  if (ours == "layer_norm") return fmt::format("{}_top_ln_{}", side, vector);
  if (ours == "layernorm_embedding") return fmt::format("{}_emb_ln_{}_pre", side, vector);
  ours.remove_prefix(std::string_view("layers.").size());
  int layer = 0;
  const char* const rest = std::from_chars(ours.data(), ours.data() + ours.size(), layer).ptr;
  ours.remove_prefix(static_cast<size_t>(rest + 1 - ours.data()));
  const auto found = std::ranges::find(kNames, ours, &Name::ours);
  SAT_ASSERT(found != kNames.end());
  std::string name(found->marian);
  if (const size_t at = name.find('?'); at != std::string::npos) {
    name[at] = weight ? 'W' : 'b';
  } else {
    name += vector;
    if (pre) name += "_pre";
  }
  return fmt::format("{}_l{}_{}", side, layer + 1, name);
}

}  // namespace

ModelConfig marian_config(std::span<const TensorView> tensors, const std::string& where,
                          int64_t eos) {
  const Options o(tensors, where);
  need_known_options(o);
  ModelConfig c;
  c.d_model = o.number("dim-emb");
  c.encoder_layers = o.number("enc-depth");
  c.decoder_layers = o.number("dec-depth");
  c.heads = c.kv_heads = o.number("transformer-heads");
  c.ffn = o.number("transformer-dim-ffn");
  if (c.heads < 1 || c.d_model % c.heads != 0)
    refuse(where, fmt::format("{} heads do not divide width {}", c.heads, c.d_model));
  c.head_size = c.d_model / c.heads;
  const std::string activation = o.text("transformer-ffn-activation", "swish");
  if (activation == "relu") {
    c.activation = ActivationKind::relu;
  } else if (activation == "swish") {
    c.activation = ActivationKind::silu;
  } else {
    o.fail("transformer-ffn-activation", "Saturate has Marian's swish and relu");
  }
  read_norms(o, c);
  c.shared_embeddings = o.flag("tied-embeddings-all") || o.flag("tied-embeddings-src");
  c.tied_output = o.flag("tied-embeddings-all") || o.flag("tied-embeddings");
  c.vocab_source = vocabulary(tensors, c.shared_embeddings ? "Wemb" : "encoder_Wemb", where);
  c.vocab_target = vocabulary(tensors, c.shared_embeddings ? "Wemb" : "decoder_Wemb", where);
  c.sinusoid_spacing = SinusoidSpacing::tensor2tensor;
  c.norm_eps = 1e-6f;
  c.output_bias = true;
  c.max_positions = 1024;
  c.eos_id = c.bos_id = eos;
  c.pad_id = c.decoder_start_id = c.vocab_target - 1;
  try {
    validate(c);
  } catch (const Error& e) {
    throw Error(e.code(), "marian", fmt::format("{}: {}", where, e.what()));
  }
  return c;
}

std::vector<TensorMapping> marian_mapping(std::span<const TensorView> tensors,
                                          const ModelConfig& config) {
  std::vector<TensorMapping> out = translator_tensor_mapping(config);
  std::erase_if(out, [](const TensorMapping& m) { return m.parameter.empty(); });
  const bool pre = config.norm_position == NormPosition::pre;
  for (TensorMapping& m : out) {
    m.aliases.clear();
    if (m.parameter == "output.bias") {
      m.hf_name = "decoder_ff_logit_out_b";
      m.hf_shape = {1, m.rows - 1};
      m.missing_rows = 1;
      m.missing_value = kNever;
      continue;
    }
    const bool output = m.parameter == "output.weight";
    if (output || m.parameter.ends_with("embed.weight") || m.parameter == "shared.weight") {
      m.hf_name = output                         ? "decoder_ff_logit_out_Wt"
                  : m.parameter[0] == 's'        ? "Wemb"
                  : m.parameter.starts_with("e") ? "encoder_Wemb"
                                                 : "decoder_Wemb";
      m.hf_shape = {m.rows - 1, m.cols};
      m.missing_rows = 1;
      if (output && find(tensors, m.hf_name) == nullptr) {  // as older versions wrote it
        m.hf_name = "decoder_ff_logit_out_W";
        m.hf_shape = {m.cols, m.rows - 1};
        m.transposed = true;
      }
      continue;
    }
    m.hf_name = marian_name(m.hf_name, pre);
    m.transposed = m.hf_shape.size() == 2;
    m.hf_shape = m.transposed ? std::vector{m.cols, m.rows} : std::vector<int64_t>{1, m.rows};
  }
  return out;
}

namespace {

std::vector<std::string> archives_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code unknown;
  for (const auto& entry : fs::directory_iterator(folder, unknown)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".npz") && !name.ends_with(".optimizer.npz")) found.push_back(name);
  }
  std::ranges::sort(found);
  return found;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(Errc::io, "marian", fmt::format("{}: {}", path, std::strerror(errno)));
  return {std::istreambuf_iterator<char>(in), {}};
}

// The files of a list in a decoder.yml that are in the folder; a path in it is another machine's.
std::vector<std::string> named(const std::vector<YamlEntry>& decoder, const char* key,
                               const std::string& folder) {
  std::vector<std::string> found;
  const YamlEntry* const entry = find_entry(decoder, key);
  for (const std::string& value : entry == nullptr ? std::vector<std::string>{} : entry->values) {
    const fs::path path = fs::path(folder) / fs::path(value).filename();
    if (!fs::path(value).filename().empty() && fs::exists(path)) found.push_back(path.string());
  }
  return found;
}

std::vector<std::string> vocabularies_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find("vocab") != std::string::npos &&
        (name.ends_with(".spm") || name.ends_with(".yml")))
      found.push_back(entry.path().string());
  }
  // NAME.src... and NAME.trg..., which is the order of the alphabet too.
  std::ranges::sort(found);
  if (found.size() > 2) found.clear();
  return found;
}

}  // namespace

bool is_marian_folder(const std::string& folder) {
  std::error_code unknown;
  return !fs::exists(folder + "/config.json", unknown) && !archives_in(folder).empty();
}

MarianFiles marian_files(const std::string& folder) {
  const std::vector<std::string> archives = archives_in(folder);
  std::vector<YamlEntry> decoder;
  for (const std::string& name :
       {std::string("decoder.yml"), archives.empty() ? "" : archives[0] + ".decoder.yml"}) {
    const std::string path = (fs::path(folder) / name).string();
    if (!decoder.empty() || !fs::is_regular_file(path)) continue;
    decoder = parse_flat_yaml(read_text(path), path);
  }
  MarianFiles files;
  const std::vector<std::string> models = named(decoder, "models", folder);
  const bool usual = std::ranges::find(archives, "model.npz") != archives.end();
  if (models.size() == 1) {
    files.weights = models[0];
  } else if (archives.size() == 1 || usual) {
    files.weights = (fs::path(folder) / (usual ? "model.npz" : archives[0])).string();
  } else {
    refuse(folder, fmt::format("it has {} models, {}; leave one .npz in it, or name one under "
                               "\"models\" in decoder.yml",
                               archives.size(), fmt::join(archives, ", ")));
  }
  files.vocabularies = named(decoder, "vocabs", folder);
  if (files.vocabularies.empty()) files.vocabularies = vocabularies_in(folder);
  return files;
}

std::vector<std::string> read_marian_vocabulary(const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 24;
  const std::vector<YamlEntry> entries = parse_flat_yaml(read_text(path), path);
  std::vector<std::string> pieces;
  std::vector<char> seen;
  for (const YamlEntry& e : entries) {
    const std::string value = e.values.size() == 1 ? e.values[0] : "";
    int64_t id = -1;
    const char* const end = value.data() + value.size();
    if (std::from_chars(value.data(), end, id).ptr != end || value.empty() || id < 0 || id >= kMost)
      refuse(path, fmt::format("\"{:.40}\" has the id \"{:.40}\"", e.key, value));
    const auto at = static_cast<size_t>(id);
    // Pieces that YAML cannot say leave holes; an id far behind all others is damage.
    if (at >= 2 * entries.size() + 1024)
      refuse(path, fmt::format("\"{:.40}\" has the id {}", e.key, id));
    if (at >= pieces.size()) {
      pieces.resize(at + 1);
      seen.resize(at + 1);
    }
    if (seen[at] != 0)
      refuse(path, fmt::format("\"{:.40}\" and \"{:.40}\" have the id {}", pieces[at], e.key, id));
    seen[at] = 1;
    pieces[at] = e.key;
  }
  return pieces;
}

}  // namespace saturate::model
