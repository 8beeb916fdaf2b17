// SPDX-License-Identifier: Apache-2.0
#include "model/translator.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/timed_part.h"
#include "model/translator_plan.h"

namespace saturate::model {
namespace {

constexpr const char* kOp = "translate";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, kOp, what);
}

TranslatorOptions checked(TranslatorOptions o, const ModelConfig& c) {
  if (c.kind != ModelKind::encoder_decoder) {
    refuse("the model is decoder-only; translation needs an encoder-decoder");
  }
  const auto in_vocabulary = [&](int64_t id) { return id >= 0 && id < c.vocab_target; };
  if (!in_vocabulary(c.eos_id) || !in_vocabulary(c.decoder_start_id)) {
    refuse(fmt::format("eos_id is {} and decoder_start_id {}: translation needs both, below {}",
                       c.eos_id, c.decoder_start_id, c.vocab_target));
  }
  if (o.sentences < 1 || o.source_rows < 1 || o.max_source < 1 || o.max_target < 1) {
    refuse(
        fmt::format("sentences is {}, source_rows {}, max_source {}, max_target {}: all must be "
                    "at least 1",
                    o.sentences, o.source_rows, o.max_source, o.max_target));
  }
  if (o.beam < 1 || o.beam > kernels::kMaxBeam) {
    refuse(fmt::format("beam is {}; it must be in 1 .. {}", o.beam, kernels::kMaxBeam));
  }
  if (!(o.length_factor >= 0.0f) || o.length_offset < 0 || !(o.length_penalty >= 0.0f)) {
    refuse(
        fmt::format("length_factor is {}, length_offset {}, length_penalty {}: none may be "
                    "negative",
                    o.length_factor, o.length_offset, o.length_penalty));
  }
  o.max_source = std::min(o.max_source, c.max_positions);
  o.max_target = std::min(o.max_target, c.max_positions);
  o.source_rows = std::max(o.source_rows, o.max_source);
  return o;
}

}  // namespace

struct Translator::Impl {
  Impl(const Transformer& m, const ParameterStore& s, const TranslatorOptions& o)
      : model(m), store(s), options(checked(o, m.config())) {
    constexpr int64_t kShortest = 64;
    for (int64_t most = kShortest; options.plan_by_length && most < options.max_source; most *= 4) {
      add_shapes(most);
    }
    add_shapes(options.max_source);
    if (shapes.back().slots > INT32_MAX) {
      refuse(
          fmt::format("sentences {}, max_target {} and beam {} make {} positions, more than 2^31; "
                      "lower one of them",
                      options.sentences, options.max_target, options.beam, shapes.back().slots));
    }
    plans.resize(shapes.size());
  }

  // A step costs the same whatever part of it is used, so few sentences get a smaller one.
  void add_shapes(int64_t max_source) {
    const size_t first = shapes.size();
    // On the CPU it costs in proportion to them, but below four rows little less, and there OpenBLAS
    // has kernels that sum in another order.
    const bool cuda = store.device().is_cuda();
    for (int64_t n = options.sentences; n >= 1; n /= cuda ? 8 : 2) {
      if (!cuda && n * options.beam < 4 && n < options.sentences) break;
      shapes.insert(shapes.begin() + static_cast<std::ptrdiff_t>(first), shape_of(n, max_source));
    }
  }

  // The smallest shape that holds so many sources, or a part of them; the longest comes first.
  size_t shape_for(int64_t sentences, int64_t rows, int64_t longest) const {
    size_t p = 0;
    while (shapes[p].max_source < longest) ++p;
    while (p + 1 < shapes.size() && shapes[p + 1].max_source == shapes[p].max_source &&
           (shapes[p].sentences < sentences || shapes[p].source_rows < rows)) {
      ++p;
    }
    return p;
  }

  int64_t limit_of(size_t source) const {
    const double limit = static_cast<double>(options.length_factor) * static_cast<double>(source);
    const auto most = static_cast<double>(options.max_target);
    return std::max<int64_t>(1, static_cast<int64_t>(std::min(
                                    most, limit + static_cast<double>(options.length_offset))));
  }

  DecodeShape shape_of(int64_t sentences, int64_t max_source) const {
    DecodeShape s{.sentences = sentences,
                  .max_source = max_source,
                  .max_target = limit_of(static_cast<size_t>(max_source))};
    s.source_rows =
        std::max(max_source, (options.source_rows * sentences / options.sentences + 7) / 8 * 8);
    // The longest translations that source_rows tokens in `sentences` sources can have.
    const double factor = static_cast<double>(options.length_factor);
    const double most = factor * static_cast<double>(s.source_rows) +
                        static_cast<double>(sentences * (options.length_offset + 1));
    const auto all = static_cast<double>(sentences * s.max_target);
    s.slots = static_cast<int64_t>(std::min(most, all)) * options.beam;
    return s;
  }

  void check(std::span<const std::vector<int32_t>> sources) const {
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto length = static_cast<int64_t>(sources[i].size());
      if (length < 1 || length > options.max_source) {
        refuse(fmt::format("source {} has {} tokens; it must have 1 to {}", i, length,
                           options.max_source));
      }
      for (const int32_t id : sources[i]) {
        if (id >= 0 && id < model.config().vocab_source) continue;
        refuse(fmt::format("source {} holds id {}; ids must be in 0 .. {}", i, id,
                           model.config().vocab_source - 1));
      }
    }
  }

  TranslatorPlan& plan(size_t i) {
    if (plans[i]) return *plans[i];
    const auto make = [&] {
      const TimedPart part("  memory of a plan");
      plans[i] = std::make_unique<TranslatorPlan>(model, store, options, shapes[i]);
    };
    try {
      make();
    } catch (const Error& e) {
      const auto made = [](const auto& p) { return p != nullptr; };
      if (e.code() != Errc::out_of_memory || !std::ranges::any_of(plans, made)) throw;
      for (auto& p : plans) p.reset();  // they can be made again
      make();
    }
    return *plans[i];
  }

  // Translates in batches; `done` gets each with the numbers of its sources and their best ids.
  using Done = std::function<void(TranslatorPlan&, std::span<const size_t>,
                                  std::vector<std::vector<int32_t>>&)>;
  void run(std::span<const std::vector<int32_t>> sources, const Done& done);

  const Transformer& model;
  const ParameterStore& store;
  const TranslatorOptions options;
  std::vector<DecodeShape> shapes;  // by max_source, then sentences; the last is the options'
  std::vector<std::unique_ptr<TranslatorPlan>> plans;
};

Translator::Translator(const Transformer& model, const ParameterStore& store,
                       const TranslatorOptions& options)
    : impl_(std::make_unique<Impl>(model, store, options)) {}
Translator::~Translator() = default;

int64_t Translator::batch_sentences() const noexcept { return impl_->options.sentences; }
int64_t Translator::batch_rows() const noexcept { return impl_->options.source_rows; }

void Translator::Impl::run(std::span<const std::vector<int32_t>> sources, const Done& done) {
  check(sources);
  // Sentences of one batch are of one length, so that they end at about the same step.
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sources[a].size() > sources[b].size(); });
  int64_t rows_left = 0;
  for (const auto& s : sources) rows_left += static_cast<int64_t>(s.size());

  for (size_t next = 0; next < order.size();) {
    const auto left = static_cast<int64_t>(order.size() - next);
    const size_t p = shape_for(left, rows_left, std::ssize(sources[order[next]]));
    const DecodeShape& shape = shapes[p];
    std::vector<DecodeItem> items;
    int64_t rows = 0;
    for (; next + items.size() < order.size();) {
      const auto& source = sources[order[next + items.size()]];
      const auto length = static_cast<int64_t>(source.size());
      if (static_cast<int64_t>(items.size()) == shape.sentences ||
          rows + length > shape.source_rows)
        break;
      rows += length;
      items.push_back({&source, limit_of(source.size())});
    }
    std::vector<std::vector<int32_t>> results(items.size());
    TranslatorPlan& batch = plan(p);
    batch.run(items, results);
    done(batch, std::span(order).subspan(next, items.size()), results);
    next += items.size();
    rows_left -= rows;
  }
}

std::vector<std::vector<int32_t>> Translator::translate(
    std::span<const std::vector<int32_t>> sources) {
  std::vector<std::vector<int32_t>> out(sources.size());
  impl_->run(sources, [&](TranslatorPlan&, std::span<const size_t> which, auto& ids) {
    for (size_t i = 0; i < which.size(); ++i) out[which[i]] = std::move(ids[i]);
  });
  return out;
}

std::vector<std::vector<Hypothesis>> Translator::search(
    std::span<const std::vector<int32_t>> sources) {
  std::vector<std::vector<Hypothesis>> out(sources.size());
  impl_->run(sources, [&](TranslatorPlan& plan, std::span<const size_t> which, const auto& best) {
    std::vector<std::vector<Hypothesis>> ended = plan.ended(best);
    for (size_t i = 0; i < which.size(); ++i) out[which[i]] = std::move(ended[i]);
  });
  return out;
}

}  // namespace saturate::model
