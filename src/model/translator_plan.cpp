// SPDX-License-Identifier: Apache-2.0
#include "model/translator_plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/timed_part.h"
#include "model/finite.h"

namespace saturate::model {
namespace {

Buffer zeroed(const Stream& stream, size_t bytes) {
  Buffer b(stream.device(), bytes);
  fill_bytes(stream, b.data(), 0, bytes);
  return b;
}

}  // namespace

TranslatorPlan::Layout::Layout(const DecodeShape& shape, int64_t beam) {
  const int64_t rows = shape.sentences * beam;
  words = 0;
  const auto array = [this](int64_t count) {
    const int64_t at = words;
    words += (count + 63) / 64 * 64;  // 256 bytes
    return at;
  };
  source_ids = array(shape.source_rows);
  source_positions = array(shape.source_rows);
  source_cu = array(shape.sentences + 1);
  query_cu = array(shape.sentences + 1);
  limits = array(shape.sentences);
  starts = array(rows);
  ids = array(rows);
  positions = array(rows);
  finished = array(rows);
  lengths = array(rows);
}

TranslatorPlan::TranslatorPlan(const Transformer& model, const ParameterStore& store,
                               const TranslatorOptions& o, const DecodeShape& shape)
    : model_(model),
      options_(o),
      shape_(shape),
      rows_(shape.sentences * o.beam),
      layout_(shape, o.beam),
      stream_(store.device()),
      cache_(model, stream_, store.compute_type(), shape.slots, rows_),
      encoder_(store, TapeMode::inference, nullptr),
      step_(store, TapeMode::inference, nullptr),
      replay_(o.graph, "  first step of a plan", "  graph of a plan") {
  const Device device = store.device();
  const size_t wide = size_of(store.wide_type());
  const auto rows = static_cast<size_t>(rows_), slots = static_cast<size_t>(shape.slots);
  const auto beam = static_cast<size_t>(o.beam);
  block_ = zeroed(stream_, static_cast<size_t>(layout_.words) * sizeof(int32_t));
  host_block_ = HostBuffer(device, block_.bytes());
  scores_ = zeroed(stream_, rows * wide);
  host_scores_ = HostBuffer(device, scores_.bytes());
  slots_ = zeroed(stream_, slots * sizeof(int32_t));
  tokens_ = zeroed(stream_, slots * sizeof(int32_t));
  candidate_scores_ = zeroed(stream_, rows * beam * wide);
  candidate_ids_ = zeroed(stream_, rows * beam * sizeof(int32_t));
  workspace_ = Buffer(device, device.is_cuda() ? kWorkspaceBytes : 0);
  result_ =
      HostBuffer(device, static_cast<size_t>(shape.sentences * shape.max_target) * sizeof(int32_t));
  record_encoder();
  record_step();
  stream_.synchronize();
}

void TranslatorPlan::record_encoder() {
  const PackedSide source{.tokens = {.ids = words(layout_.source_ids),
                                     .positions = words(layout_.source_positions),
                                     .cu = words(layout_.source_cu),
                                     .rows = shape_.source_rows,
                                     .sequences = shape_.sentences},
                          .max_length = shape_.max_source};
  const Value memory = model_.encode(encoder_, source);
  for (const Mixer* mixer : model_.decoder_mixers()) {
    SAT_ASSERT(mixer->decode_state(encoder_.compute_type()).row_bytes == 0);  // beams change rows
    memories_.push_back(mixer->record_memory(encoder_, memory));
    if (memories_.back()) encoder_.keep(memories_.back());
  }
  encoder_arena_ = zeroed(stream_, encoder_.plan());
}

void TranslatorPlan::record_step() {
  const ModelConfig& c = model_.config();
  const Context ctx{stream_.device(), stream_.native()};
  const Run encoded(ctx, encoder_, encoder_arena_.as<char>(), Run::Place{});
  kernels::BeamState state{.ids = words(layout_.ids),
                           .positions = words(layout_.positions),
                           .finished = words(layout_.finished),
                           .lengths = words(layout_.lengths),
                           .scores = scores_.data(),
                           .slots = slots_.as<int32_t>(),
                           .tokens = tokens_.as<int32_t>(),
                           .starts = words(layout_.starts),
                           .limits = words(layout_.limits)};
  std::vector<MixerStep> steps = cache_.steps({.positions = state.positions,
                                               .starts = state.starts,
                                               .slots = state.slots,
                                               .finished = state.finished,
                                               .max_positions = shape_.max_target,
                                               .cu_rows = words(layout_.query_cu),
                                               .cu_memory = words(layout_.source_cu),
                                               .sentences = shape_.sentences,
                                               .max_rows = options_.beam,
                                               .max_memory = shape_.max_source});
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!memories_[i]) continue;
    const Tape::Info m = encoder_.info(memories_[i]);
    steps[i].memory = step_.external(m.label, m.dtype, m.rows, m.cols, encoded(memories_[i]));
  }
  const PackedSide target{
      .tokens = {.ids = state.ids, .positions = state.positions, .rows = rows_, .sequences = rows_},
      .max_length = 1};
  const Value logits = model_.logits(step_, model_.decode_step(step_, target, steps));
  kernels::BeamStepArgs args{.state = state,
                             .candidate_scores = candidate_scores_.data(),
                             .candidate_ids = candidate_ids_.as<int32_t>(),
                             .result = result_.as<int32_t>(),
                             .sentences = shape_.sentences,
                             .beam = options_.beam,
                             .vocab = c.vocab_target,
                             .ld = step_.info(logits).cols,
                             .result_stride = shape_.max_target,
                             .dtype = step_.compute_type(),
                             .eos = static_cast<int32_t>(c.eos_id),
                             .banned = static_cast<int32_t>(c.pad_id == c.eos_id ? -1 : c.pad_id),
                             .length_penalty = options_.length_penalty};
  step_.record("beam_step", {logits}, {}, [=](const Run& r) {
    kernels::BeamStepArgs a = args;
    a.logits = r(logits);
    kernels::beam_step(r.ctx, a);
  });
  step_arena_ = zeroed(stream_, step_.plan());
}

void TranslatorPlan::fill(std::span<const DecodeItem> items) {
  int32_t* host = host_block_.as<int32_t>();
  std::fill_n(host, layout_.words, 0);
  const auto count = static_cast<int64_t>(items.size());
  const bool f64 = size_of(step_.wide_type()) == sizeof(double);
  int32_t row = 0, slot = 0;
  for (int64_t s = 0; s < shape_.sentences; ++s) {
    const auto limit = static_cast<int32_t>(s < count ? items[static_cast<size_t>(s)].limit : 0);
    if (s < count) {
      const std::vector<int32_t>& source = *items[static_cast<size_t>(s)].source;
      for (size_t i = 0; i < source.size(); ++i, ++row) {
        host[layout_.source_ids + row] = source[i];
        host[layout_.source_positions + row] = static_cast<int32_t>(i);
      }
    }
    host[layout_.source_cu + s + 1] = row;
    host[layout_.query_cu + s + 1] = static_cast<int32_t>((s + 1) * options_.beam);
    host[layout_.limits + s] = limit;
    result_.as<int32_t>()[s * shape_.max_target] = 0;
    for (int64_t k = 0; k < options_.beam; ++k) {
      const int64_t r = s * options_.beam + k;
      host[layout_.starts + r] = slot;
      host[layout_.ids + r] = static_cast<int32_t>(model_.config().decoder_start_id);
      host[layout_.finished + r] = s < count ? 0 : 1;
      slot += limit;
      const double score = k == 0 ? 0.0 : -std::numeric_limits<double>::infinity();
      if (f64) {
        host_scores_.as<double>()[r] = score;
      } else {
        host_scores_.as<float>()[r] = static_cast<float>(score);
      }
    }
  }
  SAT_ASSERT(row <= shape_.source_rows && slot <= shape_.slots);
  copy_to_device(stream_, block_.data(), host, block_.bytes());
  copy_to_device(stream_, scores_.data(), host_scores_.data(), scores_.bytes());
}

bool TranslatorPlan::all_done(int64_t sentences) const {
  for (int64_t s = 0; s < sentences; ++s) {
    int32_t& length = result_.as<int32_t>()[s * shape_.max_target];
    if (std::atomic_ref(length).load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

void TranslatorPlan::decode(int64_t sentences, int64_t longest) {
  const Context ctx{stream_.device(), stream_.native(), workspace_.data(), workspace_.bytes()};
  {
    std::optional<TimedPart> part;
    if (!replay_.ran()) part.emplace("  first encoder of a plan");
    encoder_.run(ctx, encoder_arena_.data(), false);
  }
  // The host looks at the result of the step before last, so that the device always has one to do.
  Event passed[2] = {Event(stream_.device()), Event(stream_.device())};
  for (int64_t t = 0; t < longest; ++t) {
    replay_.enqueue(stream_, [&] { step_.run(ctx, step_arena_.data(), false); });
    passed[t % 2].record(stream_);
    if (t == 0 && ctx.device.is_cuda()) continue;
    passed[ctx.device.is_cuda() ? (t - 1) % 2 : t % 2].synchronize();
    if (all_done(sentences)) break;
  }
  stream_.synchronize();
}

// A sentence of which no hypothesis has a score got none of its tokens from the model.
void TranslatorPlan::require_scores(int64_t sentences) {
  copy_to_host(stream_, host_scores_.data(), scores_.data(), scores_.bytes());
  stream_.synchronize();
  const bool f64 = size_of(step_.wide_type()) == sizeof(double);
  for (int64_t s = 0; s < sentences; ++s) {
    bool any = false;
    for (int64_t r = s * options_.beam; r < (s + 1) * options_.beam; ++r) {
      any = any || std::isfinite(f64 ? host_scores_.as<double>()[r]
                                     : static_cast<double>(host_scores_.as<float>()[r]));
    }
    if (!any) throw NonFiniteScores("translate");
  }
}

void TranslatorPlan::run(std::span<const DecodeItem> items, std::span<std::vector<int32_t>> out) {
  use_device(stream_.device());
  fill(items);
  int64_t longest = 0;
  for (const DecodeItem& i : items) longest = std::max(longest, i.limit);
  decode(static_cast<int64_t>(items.size()), longest);
  require_scores(static_cast<int64_t>(items.size()));
  for (size_t s = 0; s < items.size(); ++s) {
    const int32_t* r = result_.as<int32_t>() + static_cast<int64_t>(s) * shape_.max_target;
    SAT_ASSERT(r[0] > 0);
    out[s].assign(r + 1, r + r[0]);
  }
}

// A search that is done changes its state no more, so all of it can be read afterwards: a row whose
// last token is end-of-sentence has ended, one without a score never was.
std::vector<std::vector<Hypothesis>> TranslatorPlan::ended(
    std::span<const std::vector<int32_t>> best) {
  std::vector<int32_t> slots(static_cast<size_t>(shape_.slots)), tokens(slots.size());
  copy_to_host(stream_, host_block_.data(), block_.data(), block_.bytes());
  copy_to_host(stream_, slots.data(), slots_.data(), slots_.bytes());
  copy_to_host(stream_, tokens.data(), tokens_.data(), tokens_.bytes());
  stream_.synchronize();
  const int32_t* host = host_block_.as<int32_t>();
  const bool f64 = size_of(step_.wide_type()) == sizeof(double);
  std::vector<std::vector<Hypothesis>> out(best.size());
  for (size_t s = 0; s < best.size(); ++s) {
    for (int64_t k = 0; k < options_.beam; ++k) {
      const int64_t row = static_cast<int64_t>(s) * options_.beam + k;
      const double sum = f64 ? host_scores_.as<double>()[row] : host_scores_.as<float>()[row];
      if (host[layout_.ids + row] != model_.config().eos_id || !std::isfinite(sum)) continue;
      const int32_t length = host[layout_.lengths + row];
      Hypothesis h{.ids = {}, .log_probability = sum, .score = 0};
      h.score = sum / std::pow(static_cast<double>(length), options_.length_penalty);
      for (int32_t j = 1; j < length; ++j) {
        const int32_t slot = slots[static_cast<size_t>(host[layout_.starts + row] + j)];
        h.ids.push_back(tokens[static_cast<size_t>(slot)]);
      }
      out[s].push_back(std::move(h));
    }
    std::ranges::stable_sort(out[s], std::greater(), &Hypothesis::score);
    // Of two that differ by rounding alone the device may have taken the other.
    const auto taken = std::ranges::find(out[s], best[s], &Hypothesis::ids);
    if (taken != out[s].end()) std::rotate(out[s].begin(), taken, std::next(taken));
  }
  return out;
}

}  // namespace saturate::model
