// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/context_attention.h"
#include "ops/feed_forward.h"
#include "ops/inference.h"
#include "ops/linear.h"
#include "ops/linear_ranks.h"

namespace saturate::model {

namespace {

using Axis = Layout::Axis;

// As recorded operations use them: on a lane of their own, beside which the backward pass computes
// weight gradients.
ops::GroupOfRanks tensor_ranks(const Layout& layout) { return layout.ranks({Axis::tp}, 1); }
ops::GroupOfRanks context_ranks(const Layout& layout) { return layout.ranks({Axis::cp}, 1); }

}  // namespace

ParameterId add_part(ParameterStore& store, const Layout& layout, ParameterSpec whole,
                     int dimension, Axis axis) {
  whole.number = store.added();
  if (layout.extent(axis) == 1 && layout.extent(Axis::tp) == 1) return store.add(std::move(whole));
  if (dimension >= 0) whole.shard.cuts.push_back({.dimension = dimension, .axis = axis});
  return store.add(part_of(std::move(whole), layout.mesh(), layout.rank()));
}

ParameterId Declaration::weight(const std::string& name, int64_t count, int64_t out, int64_t in,
                                float scale, std::vector<int64_t> blocks, int dimension, Axis axis,
                                bool wide, bool multiplied) const {
  // Encoder-decoder: Glorot uniform. Decoder-only: normal 0.02, as GPT-2 (Radford et al., 2019).
  const bool lm = config.kind == ModelKind::decoder_only;
  const float bound = std::sqrt(6.0f / static_cast<float>(in + out));
  return add_part(store_, layout,
                  {.name = prefix_ + "." + name + ".weight",
                   .rows = count * out,
                   .cols = in,
                   .init = lm ? Init::normal : Init::uniform,
                   .init_scale = scale * (lm ? 0.02f : bound),
                   .decay = true,
                   .wide = wide,
                   .multiplied = multiplied,
                   .blocks = std::move(blocks)},
                  dimension, axis);
}

LinearIds Declaration::add(const std::string& name, int64_t out, int64_t in, float scale,
                           std::vector<int64_t> blocks, Cut cut, bool biased) const {
  LinearIds ids;
  ids.weight = weight(name, 1, out, in, scale, blocks,
                      cut == Cut::none      ? -1
                      : cut == Cut::outputs ? 0
                                            : 1,
                      Axis::tp, false, true);
  if (biased) {
    ids.bias =
        add_part(store_, layout,
                 {.name = prefix_ + "." + name + ".bias", .cols = out, .blocks = std::move(blocks)},
                 cut == Cut::outputs ? 1 : -1);
  }
  ids.adapter = adapter(name);
  return ids;
}

// A starts as PEFT's: uniform in 1 / sqrt(in) (kaiming_uniform_ with a = sqrt(5)); B with zeros.
AdapterIds Declaration::adapter(const std::string& name) const {
  const LoraLinear* l = config.lora.of(prefix_ + "." + name);
  if (l == nullptr) return {};
  if (layout.extent(Axis::tp) > 1) {
    throw Error(Errc::invalid_argument, "model",
                "tp is " + std::to_string(layout.extent(Axis::tp)) +
                    ", and adapters are not cut over tensor parallel ranks; use dp");
  }
  AdapterIds ids;
  ids.dropout = config.lora.dropout;
  ids.mask = name == "out"  ? MaskKind::adapter_out
             : name == "kv" ? MaskKind::adapter_memory
                            : MaskKind::adapter_in;
  ids.a = add_part(store_, layout,
                   {.name = l->a_name(),
                    .rows = l->rank(),
                    .cols = l->columns,
                    .init = Init::uniform,
                    .init_scale = 1.0f / std::sqrt(static_cast<float>(l->columns)),
                    .decay = true});
  for (size_t i = 0; i < l->parts.size(); ++i) {
    const LoraPart& part = l->parts[i];
    const ParameterId b =
        add_part(store_, layout,
                 {.name = l->b_name(i), .rows = part.rows, .cols = part.rank, .decay = true});
    ids.parts.push_back({b, part.first_row, part.scale});
  }
  for (int32_t g = 0, column = 0; config.lora.side_by_side > 0; ++g) {
    ids.begins.push_back(column);
    if (g == config.lora.side_by_side) break;
    for (const LoraPart& part : l->parts)
      if (part.adapter == g) column += static_cast<int32_t>(part.rank);
  }
  return ids;
}

LinearIds Declaration::linear(const char* name, int64_t out, int64_t in,
                              std::vector<int64_t> blocks, Cut cut) const {
  return add(name, out, in, 1.0f, std::move(blocks), cut, config.biases);
}

LinearIds Declaration::inputs_of_attention(const char* name, int64_t out,
                                           std::vector<int64_t> blocks) const {
  return add(name, out, config.d_model, 1.0f, std::move(blocks), Cut::outputs,
             config.biases || config.qkv_biases);
}

float Declaration::output_scale() const {
  if (config.kind != ModelKind::decoder_only) return 1.0f;
  return 1.0f / std::sqrt(2.0f * static_cast<float>(config.decoder_layers));
}

LinearIds Declaration::output(const char* name, int64_t out, int64_t in, Cut cut) const {
  return add(name, out, in, output_scale(), {}, cut, config.biases);
}

ParameterId Declaration::router(const char* name, int64_t out, int64_t in) const {
  return weight(name, 1, out, in, 1.0f, {}, -1, Axis::tp, true);
}

ParameterId Declaration::experts(const char* name, int64_t count, int64_t matrices, int64_t out,
                                 int64_t in) const {
  return weight(name, count, matrices * out, in, 1.0f,
                std::vector<int64_t>(static_cast<size_t>(count * matrices), out), 0, Axis::ep);
}

ParameterId Declaration::expert_outputs(const char* name, int64_t count, int64_t out,
                                        int64_t in) const {
  return weight(name, count, out, in, output_scale(), {}, 1, Axis::ep);
}

NormIds Declaration::norm(const char* suffix) const {
  NormIds ids;
  const std::string name = prefix_ + suffix;
  ids.weight = add_part(
      store_, layout,
      {.name = name + ".weight", .cols = config.d_model, .init = Init::ones, .wide = true});
  if (config.norm == kernels::NormKind::layer_norm) {
    ids.bias =
        add_part(store_, layout, {.name = name + ".bias", .cols = config.d_model, .wide = true});
  }
  return ids;
}

ParameterId Declaration::head_norm(const char* name) const {
  return add_part(store_, layout,
                  {.name = prefix_ + "." + name + ".weight",
                   .cols = config.head_size,
                   .init = Init::ones,
                   .wide = true});
}

namespace {

Value bias_of(Tape& tape, const LinearIds& ids) {
  return ids.bias.index >= 0 ? tape.parameter(ids.bias) : Value{};
}

// Of what is recorded next, from the rows of all ranks, of which x has this rank's.
void begin_gathered_rows(Tape& tape, const ops::GroupOfRanks& ranks, Value x) {
  tape.set_rows(tape.first_row() - ranks.part() * tape.info(x).rows, tape.whole_rows());
}

}  // namespace

namespace {

thread_local const AdapterRows* adapter_rows = nullptr;

// y with what adapters make of x, the projection's input.
Value adapted(Tape& tape, const AdapterIds& ids, Value x, Value y) {
  const AdapterRows* const rows = AdapterRows::current();
  if (ids.parts.empty() || (!ids.begins.empty() && rows == nullptr)) return y;
  Value z = ops::linear(tape, ops::dropout(tape, x, ids.dropout, ids.mask), tape.parameter(ids.a));
  if (!ids.begins.empty())
    z = ops::keep_columns(tape, z, ids.begins, rows->of_row(), rows->stride());
  std::vector<ops::LowRankPart> parts;
  for (const AdapterIds::Part& p : ids.parts)
    parts.push_back({tape.parameter(p.b), p.row, p.scale});
  return ops::add_low_rank(tape, y, z, parts);
}

}  // namespace

AdapterRows::AdapterRows(const int32_t* of_row, int64_t stride) noexcept
    : of_row_(of_row), stride_(stride), before_(std::exchange(adapter_rows, this)) {}
AdapterRows::~AdapterRows() { adapter_rows = before_; }
const AdapterRows* AdapterRows::current() noexcept { return adapter_rows; }

Value project(Tape& tape, const LinearIds& ids, Value x) {
  return adapted(tape, ids.adapter, x,
                 ops::linear(tape, x, tape.parameter(ids.weight), bias_of(tape, ids)));
}

namespace {

HeadPart part_of_heads(const ModelConfig& c, int64_t parts, int64_t part) {
  const int64_t heads = c.heads / parts, kv_heads = c.kv_heads / parts;
  return {.heads = heads,
          .kv_heads = kv_heads,
          .first_head = heads * part,
          .q_width = heads * c.head_size,
          .kv_width = kv_heads * c.head_size};
}

}  // namespace

HeadPart heads_of(const ModelConfig& c, const Layout& layout) {
  return part_of_heads(c, layout.extent(Axis::tp), layout.coordinate(Axis::tp));
}

HeadPart attending_heads_of(const ModelConfig& c, const Layout& layout) {
  const int64_t shared_by = layout.extent(Axis::cp);
  return part_of_heads(c, layout.extent(Axis::tp) * shared_by,
                       layout.coordinate(Axis::tp) * shared_by + layout.coordinate(Axis::cp));
}

int64_t row_chunks(const ModelConfig& c, int64_t tp, int64_t cp, ContextExchange exchange) {
  const bool divided = c.heads % (tp * cp) == 0 && c.kv_heads % (tp * cp) == 0;
  const bool follows = c.experts == 0 && std::ranges::all_of(c.mixers, [](const std::string& name) {
                         return name == "self_attention";
                       });
  // Widths that cross a link for a row and rank, (cp - 1) / cp left out: keys and values of the
  // other ranks' rows, cp x 2 kv_heads; q, k, v and the result of a share of the heads, 2 heads +
  // 2 kv_heads.
  const bool fewer_bytes = c.kv_heads * cp < c.heads + c.kv_heads;
  const bool keys = exchange == ContextExchange::keys || (exchange == ContextExchange::automatic &&
                                                          (!divided || (follows && fewer_bytes)));
  return cp > 1 && keys ? 2 * cp : 0;
}

int64_t row_chunks(const ModelConfig& c, const Layout& layout) {
  return row_chunks(c, layout.extent(Axis::tp), layout.extent(Axis::cp),
                    layout.transfers().context);
}

Value attend(Tape& tape, const ModelConfig& c, const Layout& layout, Value q, Value kv,
             ops::AttentionSpec spec, const int32_t* chunk_offsets) {
  const HeadPart mine = heads_of(c, layout);
  const bool chunks = row_chunks(c, layout) > 0;
  const HeadPart here = chunks ? mine : attending_heads_of(c, layout);
  spec.heads = here.heads;
  spec.kv_heads = here.kv_heads;
  spec.head_size = c.head_size;
  spec.dropout = c.attention_dropout;
  spec.scale = c.attention_scale;
  spec.first_head = here.first_head;
  spec.all_heads = c.heads;
  if (chunks)
    return ops::chunked_attention(tape, context_ranks(layout), q, kv, spec, chunk_offsets);
  std::vector<int64_t> blocks{mine.q_width};
  if (!kv) blocks.insert(blocks.end(), 2, mine.kv_width);
  q = rows_to_heads(tape, layout, q, std::move(blocks));
  spec.q = {q, 0};
  spec.k = {q, here.q_width};
  if (kv) {
    const int64_t first_row = tape.first_row();
    spec.k = {rows_to_heads(tape, layout, kv, {mine.kv_width, mine.kv_width}), 0};
    tape.set_rows(first_row, tape.whole_rows());  // again of the queries
  }
  spec.v = {spec.k.of, spec.k.column + here.kv_width};
  return heads_to_rows(tape, layout, ops::attention(tape, spec), mine.q_width);
}

Value rows_to_heads(Tape& tape, const Layout& layout, Value x, std::vector<int64_t> blocks) {
  const ops::GroupOfRanks ranks = context_ranks(layout);
  tape.set_rows(tape.first_row() - ranks.part() * tape.info(x).rows, tape.whole_rows());
  return ops::rows_to_heads(tape, ranks, x, std::move(blocks));
}

Value heads_to_rows(Tape& tape, const Layout& layout, Value x, int64_t q_width) {
  const ops::GroupOfRanks ranks = context_ranks(layout);
  const Value y = ops::heads_to_rows(tape, ranks, x, {q_width});
  tape.set_rows(tape.first_row() + ranks.part() * tape.info(y).rows, tape.whole_rows());
  return y;
}

Value gather_rows(Tape& tape, const Layout& layout, Value x) {
  const ops::GroupOfRanks ranks = tensor_ranks(layout);
  begin_gathered_rows(tape, ranks, x);
  return ops::gather_rows(tape, ranks, x);
}

Value project_in(Tape& tape, const Layout& layout, const LinearIds& ids, Value x) {
  const ops::GroupOfRanks ranks = tensor_ranks(layout);
  begin_gathered_rows(tape, ranks, x);
  if (ranks.parts() == 1) return project(tape, ids, x);
  return ops::gather_linear(tape, ranks, x, tape.parameter(ids.weight), bias_of(tape, ids),
                            layout.transfers().tp_overlap);
}

namespace {

// Codes are no weights that a product could read in its own way.
bool in_codes(const Tape& tape, const LinearIds& ids) {
  return tape.parameters().spec(ids.weight).storage == Storage::nf4;
}

}  // namespace

Value project_activated(Tape& tape, const Layout& layout, const LinearIds& ids, Value x,
                        kernels::ActivationKind kind) {
  if (layout.extent(Axis::tp) > 1 || !ids.adapter.parts.empty() || in_codes(tape, ids)) return {};
  return ops::activated_linear(tape, x, tape.parameter(ids.weight), bias_of(tape, ids), kind);
}

Value project_activate_project(Tape& tape, const Layout& layout, const LinearIds& in,
                               const LinearIds& out, Value x, kernels::ActivationKind kind) {
  if (!tape.training() || layout.extent(Axis::tp) > 1 || !in.adapter.parts.empty() ||
      !out.adapter.parts.empty() || in_codes(tape, in) || in_codes(tape, out))
    return {};
  return ops::feed_forward(tape, x, {tape.parameter(in.weight), bias_of(tape, in)},
                           {tape.parameter(out.weight), bias_of(tape, out)}, kind);
}

Value project_out(Tape& tape, const Layout& layout, const LinearIds& ids, Value x) {
  const ops::GroupOfRanks ranks = tensor_ranks(layout);
  if (ranks.parts() == 1) return project(tape, ids, x);
  const Value y = ops::linear_scatter(tape, ranks, x, tape.parameter(ids.weight),
                                      layout.transfers().tp_overlap);
  tape.set_rows(tape.first_row() + ranks.part() * tape.info(y).rows, tape.whole_rows());
  return ids.bias.index < 0 ? y : ops::add_bias(tape, y, tape.parameter(ids.bias));
}

Value Mixer::record_memory(Tape&, Value) const { return {}; }

int64_t Mixer::memory_bytes(DType) const { return 0; }

Value Mixer::record_prompt(Tape& tape, Value x, const MixerBatch& batch, const MixerPrompt&) const {
  return record(tape, x, batch);
}

DecodeState Mixer::decode_state(DType) const { return {}; }

}  // namespace saturate::model
