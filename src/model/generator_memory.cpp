// SPDX-License-Identifier: Apache-2.0
#include "model/generator_memory.h"

#include <algorithm>
#include <atomic>
#include <numeric>

namespace saturate::model {
namespace {

constexpr auto kWord = static_cast<int64_t>(sizeof(int32_t));

Buffer zeroed(const Stream& stream, int64_t bytes) {
  return saturate::zeroed(stream, static_cast<size_t>(bytes));
}

GeneratorMemory::Pieces pieces_of(const ModelConfig& c) {
  const int64_t queries = c.heads * c.head_size, keys = 2 * c.kv_heads * c.head_size;
  const int64_t width = std::gcd(queries, keys);
  return {.width = width, .of_queries = queries / width, .of_keys = keys / width};
}

}  // namespace

GeneratorMemory::GeneratorMemory(const Transformer& model, const ParameterStore& store,
                                 const GeneratorOptions& o, int64_t prompt_rows)
    : model_(model),
      rows_(o.sequences),
      stride_(o.max_length + 2),
      words_((model.config().vocab_target + 31) / 32),
      pieces_(pieces_of(model.config())),
      stream_(store.device()),
      cache_(model, stream_, store.compute_type(), rows_ * o.max_length, rows_) {
  const Device device = store.device();
  const auto two = [&](auto& buffers, size_t bytes) {
    for (HostBuffer& b : buffers) b = HostBuffer(device, bytes);
  };
  row_words_ = zeroed(stream_, row_arrays * rows_ * kWord);
  sequences_ = zeroed(stream_, rows_ * int64_t{sizeof(kernels::SampleSequence)});
  tokens_ = zeroed(stream_, rows_ * o.max_length * kWord);
  // Their number, in the place of eight bytes, then those that leave rows and those that come.
  placements_ = zeroed(stream_, 8 + 2 * rows_ * int64_t{sizeof(kernels::SamplePlacement)});
  two(host_placements_, placements_.bytes());
  prompts_ = zeroed(stream_, rows_ * o.max_length * kWord);
  two(host_prompts_, prompts_.bytes());
  input_ = zeroed(stream_, input_words(prompt_rows) * kWord);
  two(host_input_, input_.bytes());
  tokens_drawn_ = HostBuffer(device, static_cast<size_t>(rows_ * stride_ * kWord));
  log_probabilities_ = HostBuffer(device, tokens_drawn_.bytes());
  biases_ =
      HostBuffer(device, static_cast<size_t>(rows_ * kMostBiases) * sizeof(kernels::TokenBias));
  allowed_ = HostBuffer(device, static_cast<size_t>(rows_ * words_) * sizeof(uint32_t));
  clear();
}

void GeneratorMemory::clear() {
  fill_bytes(stream_, row_words_.data(), 0, row_words_.bytes());
  fill_bytes(stream_, row_array(finished), 1, static_cast<size_t>(rows_ * kWord));
  stream_.synchronize();
}

kernels::SampleState GeneratorMemory::state() const {
  return {.ids = row_array(ids),
          .positions = row_array(positions),
          .finished = row_array(finished),
          .starts = row_array(starts),
          .sequences = sequences_.as<kernels::SampleSequence>(),
          .tokens = tokens_.as<int32_t>()};
}

kernels::SampleResult GeneratorMemory::result() const {
  return {.tokens = tokens_drawn_.as<int32_t>(),
          .log_probabilities = log_probabilities_.as<float>(),
          .stride = stride_};
}

kernels::SampleChoices GeneratorMemory::choices() const {
  return {.biases = biases_.as<kernels::TokenBias>(),
          .bias_stride = kMostBiases,
          .allowed = allowed_.as<uint32_t>(),
          .word_stride = words_};
}

void GeneratorMemory::set_biases(int64_t part, std::span<const std::pair<int32_t, float>> biases) {
  SAT_ASSERT(std::ssize(biases) <= kMostBiases);
  kernels::TokenBias* to = biases_.as<kernels::TokenBias>() + part * kMostBiases;
  for (const auto& [id, bias] : biases) *to++ = {id, bias};
}

void GeneratorMemory::set_allowed(int64_t part, std::span<const uint32_t> words) {
  uint32_t* const to = allowed_.as<uint32_t>() + part * words_;
  const auto given = words.first(std::min(words.size(), static_cast<size_t>(words_)));
  std::fill(std::ranges::copy(given, to).out, to + words_, 0u);
}

std::vector<MixerStep> GeneratorMemory::steps(int64_t bound) const {
  return cache_.steps({.positions = row_array(positions),
                       .starts = row_array(starts),
                       .finished = row_array(finished),
                       .max_positions = bound});
}

GeneratorMemory::PromptInput GeneratorMemory::prompt_input(int64_t rows) const {
  int32_t* at = input_.as<int32_t>();
  return {at, at + rows, at + 2 * rows, at + 3 * rows, at + (3 + pieces_.all()) * rows};
}

void GeneratorMemory::take_in(const Context& ctx, const Intake& intake, int64_t rows, int turn) {
  const auto count = static_cast<int64_t>(intake.placements.size());
  SAT_ASSERT(count <= 2 * rows_);
  char* host = host_placements_[turn].as<char>();
  *reinterpret_cast<int32_t*>(host) = static_cast<int32_t>(count);
  const size_t bytes = intake.placements.size() * sizeof(kernels::SamplePlacement);
  std::copy_n(reinterpret_cast<const char*>(intake.placements.data()), bytes, host + 8);
  copy_to_device(stream_, placements_.data(), host, bytes + 8);
  if (!intake.prompts.empty()) {
    int32_t* to = host_prompts_[turn].as<int32_t>();
    std::ranges::copy(intake.prompts, to);
    copy_to_device(stream_, prompts_.data(), to, intake.prompts.size() * sizeof(int32_t));
  }
  if (rows > 0) {
    int32_t* to = host_input_[turn].as<int32_t>();
    const auto array = [&](const std::vector<int32_t>& v, int64_t length, int32_t rest) {
      std::fill(std::ranges::copy(v, to).out, to + length, rest);
      to += length;
    };
    array(intake.ids, rows, 0);
    array(intake.positions, rows, 0);
    array(intake.adapters, rows, -1);
    std::vector<int32_t> places;  // of each piece; queries go nowhere
    for (const int32_t slot : intake.slots) {
      places.insert(places.end(), static_cast<size_t>(pieces_.of_queries), -1);
      for (int64_t k = 0; k < pieces_.of_keys; ++k)
        places.push_back(static_cast<int32_t>(slot * pieces_.of_keys + k));
    }
    array(places, pieces_.all() * rows, -1);
    array(intake.cu, rows_ + 1, intake.cu.back());
    copy_to_device(stream_, input_.data(), host_input_[turn].data(),
                   static_cast<size_t>(input_words(rows) * kWord));
  }
  kernels::sample_place(
      ctx,
      {.placements = reinterpret_cast<const kernels::SamplePlacement*>(placements_.as<char>() + 8),
       .count = placements_.as<int32_t>(),
       .prompts = prompts_.as<int32_t>(),
       .most = 2 * rows_,
       .state = state()});
}

void GeneratorMemory::expect(int64_t part) { tokens_of(part)[0] = tokens_of(part)[1] = 0; }
int32_t GeneratorMemory::ending(int64_t part) const {
  return std::atomic_ref(tokens_of(part)[1]).load(std::memory_order_acquire);
}
int32_t GeneratorMemory::drawn(int64_t part) const {
  return std::atomic_ref(tokens_of(part)[0]).load(std::memory_order_acquire);
}
float GeneratorMemory::log_probability(int64_t part, int64_t i) const {
  return log_probabilities_.as<float>()[part * stride_ + 2 + i];
}

std::unique_ptr<RecordedPlan> record_prompts(const ParameterStore& store,
                                             const GeneratorMemory& memory,
                                             const GeneratorOptions& o, int64_t rows) {
  auto plan = std::make_unique<RecordedPlan>(store, memory.stream(), o.graph, "  first prompts",
                                             "  graph of prompts");
  const GeneratorMemory::PromptInput input = memory.prompt_input(rows);
  const PackedSide side{.tokens = {.ids = input.ids,
                                   .positions = input.positions,
                                   .cu = input.cu,
                                   .valid = input.cu + memory.rows(),
                                   .rows = rows,
                                   .sequences = memory.rows()},
                        .max_length = std::min(rows, o.max_length)};
  std::vector<MixerPrompt> prompts;
  for (const MixerStep& step : memory.steps(o.max_length)) {
    prompts.push_back(
        {.places = input.places, .width = memory.pieces().width, .slot_state = step.slot_state});
  }
  const AdapterRows adapters(input.adapters, 1);
  memory.model().read_prompts(plan->tape(), side, prompts);
  plan->finish();
  return plan;
}

std::unique_ptr<RecordedPlan> record_step(const ParameterStore& store,
                                          const GeneratorMemory& memory, const GeneratorOptions& o,
                                          kernels::SuppressedTokens suppressed, int64_t rows,
                                          int64_t bound) {
  auto plan = std::make_unique<RecordedPlan>(store, memory.stream(), o.graph,
                                             "  first step of a plan", "  graph of a plan");
  Tape& tape = plan->tape();
  const Transformer& model = memory.model();
  const kernels::SampleState state = memory.state();
  const PackedSide side{
      .tokens = {.ids = state.ids, .positions = state.positions, .rows = rows, .sequences = rows},
      .max_length = 1};
  const AdapterRows adapters(&state.sequences->adapter,
                             sizeof(kernels::SampleSequence) / sizeof(int32_t));
  const Value logits = model.logits(tape, model.decode_step(tape, side, memory.steps(bound)));
  const kernels::SampleStepArgs args{.state = state,
                                     .suppressed = suppressed,
                                     .result = memory.result(),
                                     .choices = memory.choices(),
                                     .rows = rows,
                                     .vocab = model.config().vocab_target,
                                     .ld = tape.info(logits).cols,
                                     .dtype = tape.compute_type()};
  // The rules of sequences change the logits where they lie, the last to read them.
  tape.record("sample_step", {logits}, {}, [=](const Run& r) {
    kernels::SampleStepArgs a = args;
    a.logits = r(logits);
    kernels::sample_step(r.ctx, a);
  });
  plan->finish();
  return plan;
}

}  // namespace saturate::model
