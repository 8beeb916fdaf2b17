// SPDX-License-Identifier: Apache-2.0
// What layers are made of: a layer is a list of pairs of a norm and a mixer. A mixer declares its
// parameters once and says the rest from them: how it is recorded, what generation keeps of it, how
// much it computes. Parameter lists, model files, caches and FLOP counts follow.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/layout.h"
#include "ops/tape.h"

namespace saturate::model {

// Adapters beside a projection (model/lora.h); none without parts.
struct AdapterIds {
  struct Part {
    ParameterId b;
    int64_t row = 0;  // of the projection, where its outputs begin
    float scale = 0;
  };
  ParameterId a;
  std::vector<Part> parts;
  // Of several side by side: where the columns of each begin in A x, and the end; else empty.
  std::vector<int32_t> begins = {};
  float dropout = 0;
  MaskKind mask = MaskKind::adapter_in;
};
/// Which of several adapters each row has, for what this thread records while it lives: element
/// [row * stride], in device memory that is read when the list runs. Rows of lists that are recorded
/// without it have none.
class AdapterRows {
 public:
  AdapterRows(const int32_t* of_row, int64_t stride) noexcept;
  ~AdapterRows();
  AdapterRows(const AdapterRows&) = delete;
  AdapterRows& operator=(const AdapterRows&) = delete;

  static const AdapterRows* current() noexcept;  // null: there is none
  const int32_t* of_row() const noexcept { return of_row_; }
  int64_t stride() const noexcept { return stride_; }

 private:
  const int32_t* of_row_;
  int64_t stride_;
  const AdapterRows* before_;
};

struct LinearIds {
  ParameterId weight, bias;  // without a bias its index is -1
  AdapterIds adapter = {};
};
struct NormIds {
  ParameterId weight, bias;
};

// What tensor-parallel ranks hold of a projection (out, in): all of it, equal parts of its outputs (of
// each of its blocks), or equal parts of its inputs.
enum class Cut : uint8_t { none, outputs, inputs };

// Adds a parameter to the store: what this rank of the layout holds of `whole`, whose dimension
// `dimension` the ranks of `axis` cut (-1: none). Errors: those of ShardSpec::check.
ParameterId add_part(ParameterStore& store, const Layout& layout, ParameterSpec whole,
                     int dimension = -1, Layout::Axis axis = Layout::Axis::tp);

// Adds the parameters of one mixer to a store in the order of the calls; `prefix` is
// "<layer>.<mixer>".
class Declaration {
 public:
  Declaration(const ModelConfig& c, ParameterStore& store, std::string prefix,
              const Layout& ranks = Layout::one_rank())
      : config(c), layout(ranks), store_(store), prefix_(std::move(prefix)) {}

  // A projection (out, in) of the whole model. `blocks`: the rows of each matrix that lies in it,
  // such as {q, k, v}; none: it is one matrix.
  LinearIds linear(const char* name, int64_t out, int64_t in, std::vector<int64_t> blocks = {},
                   Cut cut = Cut::none) const;
  // The same for q, k and v, which may have biases where others have none.
  LinearIds inputs_of_attention(const char* name, int64_t out, std::vector<int64_t> blocks) const;
  // The projection whose result joins the residual stream: it starts smaller in deep decoder-only
  // models (Radford et al., 2019).
  LinearIds output(const char* name, int64_t out, int64_t in, Cut cut = Cut::none) const;
  // A projection without bias that every rank has, computed in the wide type.
  ParameterId router(const char* name, int64_t out, int64_t in) const;
  // The projections of `count` experts, one below the other, without biases; each starts as linear()
  // or output() alone would. Expert-parallel ranks hold a part of every expert: of the outputs of
  // each of its `matrices` (out, in) such as {gate, up}, and of the inputs of expert_outputs().
  ParameterId experts(const char* name, int64_t count, int64_t matrices, int64_t out,
                      int64_t in) const;
  ParameterId expert_outputs(const char* name, int64_t count, int64_t out, int64_t in) const;
  // The norm before or after the mixer: "<layer>.<mixer>_norm", or with another suffix.
  NormIds norm(const char* suffix = "_norm") const;
  // Of each head of a projection: (head_size) in the wide type, "<layer>.<mixer>.<name>.weight".
  ParameterId head_norm(const char* name) const;

  const ModelConfig& config;
  const Layout& layout;  // outlives the model
  int64_t layer = 0;     // its number among those of the encoder and then of the decoder

 private:
  ParameterId weight(const std::string& name, int64_t count, int64_t out, int64_t in, float scale,
                     std::vector<int64_t> blocks, int dimension, Layout::Axis axis,
                     bool wide = false, bool multiplied = false) const;
  float output_scale() const;
  AdapterIds adapter(const std::string& name) const;
  LinearIds add(const std::string& name, int64_t out, int64_t in, float scale,
                std::vector<int64_t> blocks, Cut cut, bool biased) const;

  ParameterStore& store_;
  std::string prefix_;
};

// y = x w^T + bias, and what adapters add
Value project(Tape& tape, const LinearIds& ids, Value x);

// Between mixers a rank has its own rows (Layout::row_parts); inside a mixer that ranks share, each
// computes some of the heads or columns, for the rows of all its tensor-parallel ranks. These three
// lead in and out, and tell the tape where the rows lie. With one such rank they only project.
//
// The rows of all tensor-parallel ranks, of which x has this rank's. Cost: an all-gather.
Value gather_rows(Tape& tape, const Layout& layout, Value x);
// A projection cut by outputs, of all ranks' rows: gather_rows, then project.
Value project_in(Tape& tape, const Layout& layout, const LinearIds& ids, Value x);
// f of a projection as one operation, where weights are packed (ops/linear.h); none elsewhere.
Value project_activated(Tape& tape, const Layout& layout, const LinearIds& ids, Value x,
                        kernels::ActivationKind kind);
// Both projections of a feed-forward layer and f between them (ops/feed_forward.h), in training; none with
// several tensor-parallel ranks, whose products lie around transfers in pieces, with adapters, which add
// to what f is given, and where kernels gain nothing.
Value project_activate_project(Tape& tape, const Layout& layout, const LinearIds& in,
                               const LinearIds& out, Value x, kernels::ActivationKind kind);
// A projection cut by inputs, back to this rank's rows: each rank's product is a term of the sum;
// the bias is added once, to the sum. Cost: a reduce-scatter.
Value project_out(Tape& tape, const Layout& layout, const LinearIds& ids, Value x);

// Into attention and out of it, where context-parallel ranks have some rows each: of q, k and v (any
// of them side by side, `blocks` their columns) all rows, with this rank's part of the heads; of its
// result this rank's rows, with all of q_width. With one such rank nothing changes. Cost: an
// all-to-all each.
Value rows_to_heads(Tape& tape, const Layout& layout, Value x, std::vector<int64_t> blocks);
Value heads_to_rows(Tape& tape, const Layout& layout, Value x, int64_t q_width);

// Whether ranks of a context-parallel group gather keys and values instead, each for the queries of
// two chunks of the rows: the chunks of a micro-batch's rows (Tape::set_chunks), else 0.
int64_t row_chunks(const ModelConfig& config, int64_t tp, int64_t cp, ContextExchange exchange);
int64_t row_chunks(const ModelConfig& config, const Layout& layout);

// Attention between a mixer's projections, by whichever exchange the model takes: q and, behind it or
// in kv, keys and values of this rank's rows; returns q's rows with all of q_width. spec: sequences of
// the whole micro-batches, their bounds and the mask. chunk_offsets: of q's side (TokenArrays), where
// ranks have chunks.
Value attend(Tape& tape, const ModelConfig& config, const Layout& layout, Value q, Value kv,
             ops::AttentionSpec spec, const int32_t* chunk_offsets = nullptr);

// The heads of attention that a rank has: those that it projects, or those of them that it attends
// with, where context-parallel ranks share them.
struct HeadPart {
  int64_t heads = 0, kv_heads = 0, first_head = 0;
  int64_t q_width = 0, kv_width = 0;  // columns of q, and of k or v
};
HeadPart heads_of(const ModelConfig& config, const Layout& layout);
HeadPart attending_heads_of(const ModelConfig& config, const Layout& layout);

// One side of a packed batch: its arrays in device memory and the bounds the plan was made for.
struct PackedSide {
  ops::TokenArrays tokens;
  int64_t max_length = 0;
};

// The packed batch around a mixer's input.
struct MixerBatch {
  const PackedSide& side;  // of the input's rows
  bool causal = false;     // no token may see a later one
  // What a key adds to its score, (heads, max_length * max_length) in the wide type; or none.
  Value relative_bias = {};
  Value memory = {};                   // the encoder's result, for the decoder of such a model
  const PackedSide* source = nullptr;  // of the memory's rows
};

// What a mixer keeps of the tokens that generation has seen.
struct DecodeState {
  // Bytes of one token. They lie in slots and beams share the slots of a common history, so that
  // nothing moves when beams change places (kernels/decode/cached_attention.h).
  int64_t slot_bytes = 0;
  // Bytes of one sequence, whatever its length. They belong to a row: beam search, whose rows
  // change places, would have to move them, so it takes no model that has them.
  int64_t row_bytes = 0;
};

// One step of generation, a token of each row, in device memory. The arrays are those of
// kernels/decode/cached_attention.h.
struct MixerStep {
  const int32_t* positions = nullptr;
  const int32_t* starts = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* finished = nullptr;
  int64_t max_positions = 0;
  void* slot_state = nullptr;  // of this mixer: DecodeState::slot_bytes of each slot
  void* row_state = nullptr;   // DecodeState::row_bytes of each row
  // What a key so many tokens before adds to its score, (heads, max_positions) in the wide type.
  Value relative_bias = {};
  // For mixers that read the encoder's memory: rows of Mixer::memory_bytes(), which record_memory()
  // made, and by row of the step where those of its source lie.
  void* memory_state = nullptr;
  const int32_t* memory_starts = nullptr;
  const int32_t* memory_lengths = nullptr;
  int64_t max_memory = 0;
  // Where the mean of these heads' weights goes, by slot (kernels/decode/memory_weights.h); null: nowhere.
  float* memory_weights = nullptr;
  int64_t weights_stride = 0, first_head = 0, head_count = 1;
};

// Where what a pass over whole prompts leaves for the steps goes: the rows of keys and values, seen as
// pieces of `width` elements, to the pieces `places` of the slots (ops/store_rows.h).
struct MixerPrompt {
  const int32_t* places = nullptr;
  int64_t width = 0;
  void* slot_state = nullptr;  // of this mixer
  bool ends = false;           // no later mixer stores anything: nobody reads this one's result
};

// Tokens that pass a mixer, and pairs of a token and one that it sees.
struct MixerWork {
  double tokens = 0, pairs = 0;
  double memory_tokens = 0, memory_pairs = 0;
};

class Mixer {
 public:
  virtual ~Mixer() = default;

  // x (rows, d_model), normalised, to what is added to the residual stream, of the same shape.
  virtual Value record(Tape& tape, Value x, const MixerBatch& batch) const = 0;
  // The same for one token of each row, given what the steps before have left in the state. For
  // inference only.
  virtual Value record_step(Tape& tape, Value x, const MixerStep& step) const = 0;
  // What all steps read of the encoder's memory, a row for each of its rows; none by default.
  virtual Value record_memory(Tape& tape, Value memory) const;
  // Bytes of such a row; 0 where there is none.
  virtual int64_t memory_bytes(DType compute) const;
  virtual DecodeState decode_state(DType compute) const;
  // Whether record_prompt() leaves all that record_step() needs; else prompts are read by steps.
  virtual bool reads_prompts() const { return true; }
  // record(), and what steps need of these tokens is stored: for mixers that keep something of each
  // token. For inference only. May give none where the prompt ends with it.
  virtual Value record_prompt(Tape& tape, Value x, const MixerBatch& batch,
                              const MixerPrompt& prompt) const;
  // Multiplications of the products of a forward pass (each has its addition).
  virtual double products(const MixerWork& work) const = 0;
};

// A kind of mixer. Adding one: a folder that defines a `const MixerKind`, and its name in
// registry.cpp.
struct MixerKind {
  const char* name;    // in configurations: "linear_attention"
  const char* prefix;  // of its parameters in a layer: "linear"
  // Whether model.mixers may name it: it takes the place of self-attention in a causal layer.
  bool choosable;
  // Why a model cannot have it, or null. Asked of configurations whose sizes are valid.
  const char* (*refusal)(const ModelConfig& config);
  std::unique_ptr<const Mixer> (*make)(const Declaration& declare);
};

}  // namespace saturate::model
