// SPDX-License-Identifier: Apache-2.0
#include "model/translator_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace saturate::model {
namespace {

Buffer zeroed(const Stream& stream, int64_t bytes) {
  return saturate::zeroed(stream, static_cast<size_t>(bytes));
}
constexpr auto kWord = static_cast<int64_t>(sizeof(int32_t));
// Placements lie behind their number, where a GPU can read their 64-bit words.
constexpr int64_t kPlacements = 8;
static_assert(kPlacements % alignof(kernels::BeamPlacement) == 0);

}  // namespace

TranslatorMemory::TranslatorMemory(std::span<const EnsembleModel> models,
                                   const TranslatorOptions& o, const TranslatorSizes& sizes)
    : beam_(o.beam),
      start_(static_cast<int32_t>(models[0].model->config().decoder_start_id)),
      compute_(models[0].store->compute_type()),
      wide_(models[0].store->wide_type()),
      sizes_(sizes),
      stream_(models[0].store->device()) {
  const Device device = stream_.device();
  const auto wide = static_cast<int64_t>(size_of(wide_));
  const auto all = [&](auto& buffers, int64_t bytes) {
    for (HostBuffer& b : buffers) b = HostBuffer(device, static_cast<size_t>(bytes));
  };
  row_words_ = zeroed(stream_, Row::count * rows() * kWord);
  scores_ = zeroed(stream_, rows() * wide);
  penalties_ = zeroed(stream_, rows() * wide);
  sentences_ = zeroed(stream_, sizes.places * int64_t{sizeof(kernels::BeamSentence)});
  slots_ = zeroed(stream_, sizes.slots * kWord);
  tokens_ = zeroed(stream_, sizes.slots * kWord);
  sums_ = zeroed(stream_, sizes.slots * wide);
  // A place may be left by one sentence and taken by another in one intake; then their number.
  const int64_t placed = 2 * sizes.places * int64_t{sizeof(kernels::BeamPlacement)} + kPlacements;
  placements_ = zeroed(stream_, placed);
  all(host_placements_, placed);
  prefixes_ = zeroed(stream_, (sizes.slots / beam_ + 1) * kWord);
  all(host_prefixes_, static_cast<int64_t>(prefixes_.bytes()));
  input_ = zeroed(stream_, input_words(sizes.encoder_rows) * kWord);
  all(host_input_, static_cast<int64_t>(input_.bytes()));
  const int64_t result = rows() * sizes.longest;
  done_ = HostBuffer(device, static_cast<size_t>(sizes.places * kWord));
  result_tokens_ = HostBuffer(device, static_cast<size_t>(result * kWord));
  result_sums_ = HostBuffer(device, static_cast<size_t>(result * wide));
  for (const EnsembleModel& m : models) {
    Kept& kept =
        kept_.emplace_back(Kept{DecodeCache(*m.model, stream_, compute_, sizes.slots, rows())});
    for (const Mixer* mixer : m.model->decoder_mixers()) {
      SAT_ASSERT(mixer->decode_state(compute_).row_bytes == 0);  // beams change rows
      kept.memories.push_back(zeroed(stream_, sizes.memory_rows * mixer->memory_bytes(compute_)));
    }
  }
  if (models.size() > 1) keep_logits(models);
  if (o.attention) keep_attention(*models[0].model, o);
  clear();
}

void TranslatorMemory::keep_logits(std::span<const EnsembleModel> models) {
  const int64_t columns = Transformer::padded_vocab(models[0].model->config().vocab_target);
  const auto all = [&](DType type) {
    return zeroed(stream_, rows() * columns * static_cast<int64_t>(size_of(type)));
  };
  double sum = 0;
  for (const EnsembleModel& m : models) sum += m.weight;
  ensemble_.models = std::ssize(models);
  for (size_t i = 0; i < models.size(); ++i) {
    kept_[i].logits = all(compute_);
    ensemble_.logits[i] = kept_[i].logits.data();
    ensemble_.weights[i] = models[i].weight / sum;
  }
  if (compute_ != wide_) mean_ = all(wide_);
  log_sums_ = zeroed(stream_, rows() * static_cast<int64_t>(size_of(wide_)));
  ensemble_.mean = compute_ == wide_ ? ensemble_.logits[0] : mean_.data();
  ensemble_.log_sums = log_sums_.data();
}

void TranslatorMemory::keep_attention(const Transformer& model, const TranslatorOptions& o) {
  const std::vector<const Mixer*> mixers = model.decoder_mixers();
  int64_t layer = -1;
  for (int64_t i = 0; i < std::ssize(mixers); ++i) {
    if (mixers[static_cast<size_t>(i)]->memory_bytes(compute_) == 0) continue;
    if (++layer == o.attention_layer || o.attention_layer < 0) weighing_ = i;
  }
  const int64_t heads = model.config().heads;
  if (weighing_ < 0 || o.attention_layer > layer || o.attention_head >= heads) {
    throw Error(
        Errc::invalid_argument, "translate",
        fmt::format("attention of layer {} and head {} is wanted; the decoder has {} layers "
                    "with {} heads each, counted from 0",
                    o.attention_layer, o.attention_head, layer + 1, heads));
  }
  first_head_ = std::max<int64_t>(0, o.attention_head);
  head_count_ = o.attention_head < 0 ? heads : 1;
  const Device device = stream_.device();
  weights_ =
      HostBuffer(device, static_cast<size_t>(sizes_.slots * sizes_.longest_source) * sizeof(float));
  result_slots_ =
      HostBuffer(device, static_cast<size_t>(rows() * sizes_.longest) * sizeof(int32_t));
}

void TranslatorMemory::clear() {
  fill_bytes(stream_, row_words_.data(), 0, row_words_.bytes());
  fill_bytes(stream_, row_array(Row::finished), 1, static_cast<size_t>(rows() * kWord));
  stream_.synchronize();
}

kernels::BeamState TranslatorMemory::state() const {
  return {.ids = row_array(Row::ids),
          .positions = row_array(Row::positions),
          .finished = row_array(Row::finished),
          .lengths = row_array(Row::lengths),
          .starts = row_array(Row::starts),
          .scores = scores_.data(),
          .penalties = penalties_.data(),
          .sentences = sentences_.as<kernels::BeamSentence>(),
          .slots = slots_.as<int32_t>(),
          .tokens = tokens_.as<int32_t>(),
          .sums = sums_.data()};
}

kernels::BeamResult TranslatorMemory::results() const {
  return {.done = done_.as<int32_t>(),
          .tokens = result_tokens_.as<int32_t>(),
          .sums = result_sums_.data(),
          .stride = sizes_.longest,
          .slots = weighing_ < 0 ? nullptr : result_slots_.as<int32_t>()};
}

std::vector<MixerStep> TranslatorMemory::steps(size_t model, int64_t positions_bound,
                                               int64_t memory_bound) const {
  const Kept& kept = kept_[model];
  std::vector<MixerStep> steps = kept.cache.steps({.positions = row_array(Row::positions),
                                                   .starts = row_array(Row::starts),
                                                   .slots = slots_.as<int32_t>(),
                                                   .finished = row_array(Row::finished),
                                                   .max_positions = positions_bound,
                                                   .memory_starts = row_array(Row::memory_starts),
                                                   .memory_lengths = row_array(Row::memory_lengths),
                                                   .max_memory = memory_bound});
  for (size_t i = 0; i < steps.size(); ++i) steps[i].memory_state = kept.memories[i].data();
  if (weighing_ >= 0 && model == 0) {
    MixerStep& step = steps[static_cast<size_t>(weighing_)];
    step.memory_weights = weights_.as<float>();
    step.weights_stride = sizes_.longest_source;
    step.first_head = first_head_;
    step.head_count = head_count_;
    step.max_memory = std::min(step.max_memory, sizes_.longest_source);
  }
  return steps;
}

TranslatorMemory::EncoderInput TranslatorMemory::encoder_input(int64_t encoder_rows) const {
  int32_t* at = input_.as<int32_t>();
  return {at, at + encoder_rows, at + 2 * encoder_rows, at + 3 * encoder_rows};
}

void TranslatorMemory::take_in(const Context& ctx, const Intake& intake, int64_t encoder_rows,
                               int turn) {
  const auto count = static_cast<int64_t>(intake.placements.size());
  SAT_ASSERT(count <= 2 * sizes_.places);
  // The number of placements, then these.
  char* host = host_placements_[turn].as<char>();
  *reinterpret_cast<int32_t*>(host) = static_cast<int32_t>(count);
  const size_t bytes = intake.placements.size() * sizeof(kernels::BeamPlacement);
  std::copy_n(reinterpret_cast<const char*>(intake.placements.data()), bytes, host + kPlacements);
  copy_to_device(stream_, placements_.data(), host, bytes + kPlacements);
  if (!intake.prefixes.empty()) {
    int32_t* to = host_prefixes_[turn].as<int32_t>();
    std::ranges::copy(intake.prefixes, to);
    copy_to_device(stream_, prefixes_.data(), to, intake.prefixes.size() * sizeof(int32_t));
  }
  if (encoder_rows > 0) {
    const auto used = std::ssize(intake.ids);
    SAT_ASSERT(used <= encoder_rows && std::ssize(intake.cu) <= sizes_.places + 1);
    int32_t* to = host_input_[turn].as<int32_t>();
    const auto array = [&](const std::vector<int32_t>& v, int64_t length, int32_t rest) {
      std::fill(std::ranges::copy(v, to).out, to + length, rest);
      to += length;
    };
    array(intake.ids, encoder_rows, 0);
    array(intake.positions, encoder_rows, 0);
    array(intake.rows, encoder_rows, -1);
    array(intake.cu, sizes_.places + 1, intake.cu.back());
    copy_to_device(stream_, input_.data(), host_input_[turn].data(),
                   static_cast<size_t>(input_words(encoder_rows) * kWord));
  }
  kernels::beam_place(ctx, {.placements = reinterpret_cast<const kernels::BeamPlacement*>(
                                placements_.as<char>() + kPlacements),
                            .count = placements_.as<int32_t>(),
                            .prefixes = prefixes_.as<int32_t>(),
                            .most = 2 * sizes_.places,
                            .state = state(),
                            .memory_starts = row_array(Row::memory_starts),
                            .memory_lengths = row_array(Row::memory_lengths),
                            .beam = beam_,
                            .dtype = compute_,
                            .start = start_});
}

void TranslatorMemory::expect(int64_t part) { done_.as<int32_t>()[part] = 0; }

bool TranslatorMemory::is_done(int64_t part) const {
  return std::atomic_ref(done_.as<int32_t>()[part]).load(std::memory_order_acquire) != 0;
}

std::vector<Hypothesis> TranslatorMemory::result(int64_t part, int64_t prefix,
                                                 double length_penalty, int64_t source) const {
  std::vector<Hypothesis> found;
  const auto sum = [&](int64_t at) {
    return wide_ == DType::f64 ? result_sums_.as<double>()[at]
                               : static_cast<double>(result_sums_.as<float>()[at]);
  };
  for (int64_t k = 0; k < done_.as<int32_t>()[part]; ++k) {
    const int64_t at = (part * beam_ + k) * sizes_.longest;
    const int32_t* tokens = result_tokens_.as<int32_t>() + at;
    const int32_t length = tokens[0];
    Hypothesis& h = found.emplace_back();
    h.ids.assign(tokens + 1, tokens + length);
    h.log_probability = sum(at);
    h.score = h.log_probability / std::pow(static_cast<double>(length - prefix), length_penalty);
    double before = 0;
    for (int32_t j = 1; j <= length; ++j) {
      const double now = j < length ? sum(at + j) : h.log_probability;
      h.token_log_probabilities.push_back(now - before);
      before = now;
    }
    for (int32_t j = 0; weighing_ >= 0 && j < length; ++j) {
      const float* w =
          weights_.as<float>() + result_slots_.as<int32_t>()[at + j] * sizes_.longest_source;
      h.attention.insert(h.attention.end(), w, w + source);
    }
  }
  std::ranges::stable_sort(found, std::greater(), &Hypothesis::score);
  return found;
}

}  // namespace saturate::model
