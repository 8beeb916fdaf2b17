// SPDX-License-Identifier: Apache-2.0
// Test support: beam search that decodes every prefix anew and keeps whole hypotheses, in doubles.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "model/decode_reference_test.h"
#include "model/translator.h"

namespace saturate::model {

struct Variant {
  const char* name;
  void (*change)(ModelConfig&);
};

inline ModelConfig tiny(const Variant& v) {
  ModelConfig c;
  c.d_model = 16;
  c.encoder_layers = c.decoder_layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_size = 8;
  c.ffn = 24;
  c.vocab_source = c.vocab_target = 13;
  c.max_positions = 40;
  c.pad_id = 3;
  c.eos_id = 2;
  c.decoder_start_id = 3;
  v.change(c);
  return c;
}

inline std::vector<std::vector<int32_t>> make_sources(size_t count, size_t longest) {
  std::mt19937 random(5);
  std::vector<std::vector<int32_t>> sources(count);
  for (auto& s : sources) {
    s.resize(1 + random() % longest);
    for (int32_t& id : s) id = static_cast<int32_t>(4 + random() % 9);
    s.back() = 2;
  }
  return sources;
}

struct Listed {
  std::vector<int32_t> ids;  // with end-of-sentence
  std::vector<double> steps;
  double score = 0;
  bool ended = false;
};

// The next token's logits by the rules of kernels/decode/token_rules.h.
inline void rule(const SearchOptions& w, const std::vector<int32_t>& suppressed,
                 const std::vector<int32_t>& said, size_t least, int32_t eos,
                 std::vector<double>& z) {
  const auto penalty = static_cast<double>(w.repetition_penalty);
  for (size_t c = 0; c < z.size(); ++c) {
    if (std::ranges::find(said, static_cast<int32_t>(c)) == said.end()) continue;
    z[c] = z[c] > 0 ? z[c] / penalty : z[c] * penalty;
  }
  const auto n = static_cast<std::ptrdiff_t>(w.no_repeat_ngram);
  for (size_t c = 0; n > 0 && c < z.size(); ++c) {
    std::vector<int32_t> with = said;
    with.push_back(static_cast<int32_t>(c));
    if (std::ssize(with) > n &&
        std::search(with.begin(), with.end() - 1, with.end() - n, with.end()) != with.end() - 1)
      z[c] = -INFINITY;
  }
  if (said.size() < least) z[static_cast<size_t>(eos)] = -INFINITY;
  for (const int32_t id : suppressed) z[static_cast<size_t>(id)] = -INFINITY;
}

// Of one model of several; the weights add up to 1.
struct WeightedDecoder {
  const ReferenceDecoder& decoder;
  double weight = 1;
};

// The search as beam_step.h states it, by the mean of the log-probabilities of all models; all that had
// ended, the best first.
inline std::vector<Listed> search(std::span<const WeightedDecoder> decoders, const ModelConfig& c,
                                  const std::vector<int32_t>& source, const TranslatorOptions& o,
                                  const SearchOptions& w = {}) {
  const double factor = o.length_factor;
  const auto penalty = static_cast<double>(w.length_penalty.value_or(o.length_penalty));
  const size_t prefix = w.prefix.size();
  const auto most = w.max_length > 0 ? static_cast<double>(w.max_length + 1)
                                     : factor * static_cast<double>(source.size()) +
                                           static_cast<double>(o.length_offset);
  const auto limit =
      static_cast<size_t>(std::min(static_cast<double>(std::min(o.max_target, c.max_positions)),
                                   static_cast<double>(prefix) + std::floor(most)));
  const size_t least = std::min(prefix + static_cast<size_t>(w.min_length), limit - 1);
  const auto worth = [&](const Listed& h) {
    return h.score /
           std::pow(static_cast<double>((h.ended ? h.ids.size() : limit) - prefix), penalty);
  };
  std::vector<Listed> beam(1);
  for (size_t t = 0; t < limit; ++t) {
    std::vector<Listed> next;
    for (const Listed& h : beam) {
      if (h.ended) {
        next.push_back(h);
        continue;
      }
      if (t < prefix) {
        next.push_back(h);
        next.back().ids.push_back(w.prefix[t]);
        next.back().steps.push_back(0);
        continue;
      }
      std::vector<int32_t> input{static_cast<int32_t>(c.decoder_start_id)};
      input.insert(input.end(), h.ids.begin(), h.ids.end());
      std::vector<double> mean(static_cast<size_t>(c.vocab_target));
      for (const WeightedDecoder& d : decoders) {
        std::vector<double> logits = d.decoder.last_logits(source, input);
        rule(w, o.suppressed, h.ids, least, static_cast<int32_t>(c.eos_id), logits);
        double sum = 0;
        for (const double z : logits) sum += std::exp(z);
        for (size_t i = 0; i < mean.size(); ++i) mean[i] += d.weight * (logits[i] - std::log(sum));
      }
      for (int32_t id = 0; id < static_cast<int32_t>(mean.size()); ++id) {
        const double z = mean[static_cast<size_t>(id)];
        if (id == c.pad_id || (t + 1 == limit && id != c.eos_id) || z == -INFINITY) continue;
        Listed e = h;
        e.ids.push_back(id);
        e.steps.push_back(z);
        e.score += e.steps.back();
        e.ended = id == c.eos_id;
        next.push_back(e);
      }
    }
    std::stable_sort(next.begin(), next.end(),
                     [](const auto& x, const auto& y) { return x.score > y.score; });
    next.resize(std::min(next.size(), static_cast<size_t>(o.beam)));
    beam = next;
    double best_open = -INFINITY;
    for (const auto& h : beam) best_open = h.ended ? best_open : std::max(best_open, worth(h));
    if (std::ranges::count_if(
            beam, [&](const auto& h) { return h.ended && worth(h) >= best_open; }) >= w.nbest)
      break;
  }
  std::erase_if(beam, [](const Listed& h) { return !h.ended; });
  std::stable_sort(beam.begin(), beam.end(),
                   [&](const auto& x, const auto& y) { return worth(x) > worth(y); });
  return beam;
}

inline std::vector<Listed> search(const ReferenceDecoder& decoder, const ModelConfig& c,
                                  const std::vector<int32_t>& source, const TranslatorOptions& o,
                                  const SearchOptions& w = {}) {
  return search(std::array{WeightedDecoder{decoder}}, c, source, o, w);
}

inline std::vector<int32_t> without_end(const Listed& h) {
  return {h.ids.begin(), h.ids.end() - 1};
}

}  // namespace saturate::model
