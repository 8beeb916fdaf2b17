// SPDX-License-Identifier: Apache-2.0
#include "train/token_scorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/half.h"
#include "kernels/host/vector_math.h"
#include "model/finite.h"
#include "model/mixers/mixer.h"
#include "model/recorded_plan.h"
#include "runtime/memory.h"
#include "runtime/parallel_for.h"

namespace saturate::train {
namespace {

constexpr int64_t kLogitsRows = 64;

void to_floats(const void* from, DType type, int64_t n, float* to) {
  if (type == DType::bf16) {
    std::transform(static_cast<const Bf16*>(from), static_cast<const Bf16*>(from) + n, to,
                   [](Bf16 v) { return to_float(v); });
  } else if (type == DType::f16) {
    std::transform(static_cast<const F16*>(from), static_cast<const F16*>(from) + n, to,
                   [](F16 v) { return to_float(v); });
  } else {
    SAT_ASSERT(type == DType::f32);
    std::copy_n(static_cast<const float*>(from), n, to);
  }
}

// False where they are no numbers.
bool score_row(std::span<const float> z, int32_t id, int64_t most, TokenScore& score) {
  const float top = *std::ranges::max_element(z);
  const auto sum = kernels::lane_sum<float>(
      std::ssize(z), [&](int64_t c) { return kernels::vector_exp(z[c] - top); });
  const double norm = double{top} + std::log(double{sum});
  if (!std::isfinite(norm)) return false;
  score.log_probability = z[static_cast<size_t>(id)] - norm;
  if (most == 0) return true;
  std::vector<int32_t> best(z.size());
  std::iota(best.begin(), best.end(), 0);
  const auto end = best.begin() + std::min<std::ptrdiff_t>(most, std::ssize(best));
  std::partial_sort(best.begin(), end, best.end(), [&](int32_t a, int32_t b) {
    const float x = z[static_cast<size_t>(a)], y = z[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (auto i = best.begin(); i != end; ++i)
    score.likeliest.emplace_back(*i, z[static_cast<size_t>(*i)] - norm);
  return true;
}

}  // namespace

struct TokenScorer::Impl {
  // The whole model on one sequence of at most `rows` tokens, up to the last norm.
  struct Pass {
    int64_t rows;
    HostBuffer host;  // [ids | positions | adapters | cu 0, length | length]
    Buffer words, hidden;
    model::RecordedPlan plan;

    Pass(const LoadedModel& m, const Stream& stream, int64_t all)
        : rows(all),
          host(stream.device(), static_cast<size_t>(3 * all + 4) * sizeof(int32_t)),
          words(stream.device(), host.bytes()),
          hidden(stream.device(),
                 static_cast<size_t>(all * m.config.d_model) * size_of(m.store->compute_type())),
          plan(*m.store, stream, false, "  scores of a text", "") {
      int32_t* const w = words.as<int32_t>();
      const model::PackedSide side{.tokens = {.ids = w,
                                              .positions = w + rows,
                                              .cu = w + 3 * rows,
                                              .valid = w + 3 * rows + 2,
                                              .rows = rows,
                                              .sequences = 1},
                                   .max_length = rows};
      const model::AdapterRows adapters(w + 2 * rows, 1);
      Tape& tape = plan.tape();
      const Value out = m.transformer->decode(tape, side, {}, nullptr);
      const size_t row = hidden.bytes() / static_cast<size_t>(rows);
      SAT_ASSERT(tape.info(out).bytes() == hidden.bytes());
      tape.record("keep_hidden", {out}, {}, [this, out, row](const Run& r) {
        copy_rows(r.ctx, hidden.data(), row, r(out), row, row, static_cast<size_t>(rows));
      });
      plan.finish();
    }
  };

  explicit Impl(const LoadedModel& m)
      : model(m),
        device(m.store->device()),
        stream(device),
        workspace(device, device.is_cuda() ? kWorkspaceBytes : 0),
        type(m.store->compute_type()),
        row_bytes(static_cast<size_t>(m.config.d_model) * size_of(type)),
        some(device, kLogitsRows * row_bytes),
        output(*m.store, stream, false, "  scores of tokens", "") {
    Tape& tape = output.tape();
    const Value in = tape.external("hidden", type, kLogitsRows, m.config.d_model, some.data());
    const Value z = m.transformer->logits(tape, in);
    columns = tape.info(z).cols;
    logits = HostBuffer(device, tape.info(z).bytes());
    tape.record("give_logits", {z}, {}, [this, z](const Run& r) {
      copy_to_host(stream, logits.data(), r(z), logits.bytes());
    });
    output.finish();
    fill_bytes(stream, some.data(), 0, some.bytes());
  }

  Context context() const { return {device, stream.native(), workspace.data(), workspace.bytes()}; }

  // A power of two of rows, so that there are few passes; no more than the model takes.
  Pass& pass_for(int64_t length) {
    int64_t rows = 64;
    while (rows < length) rows *= 2;
    rows = std::min(rows, (model.config.max_positions + 7) / 8 * 8);
    std::unique_ptr<Pass>& pass = passes[rows];
    if (!pass) pass = std::make_unique<Pass>(model, stream, rows);
    return *pass;
  }

  void read(Pass& pass, std::span<const int32_t> ids, int32_t adapter) {
    int32_t* const w = pass.host.as<int32_t>();
    std::fill_n(w, 2 * pass.rows, 0);
    std::ranges::copy(ids, w);
    std::iota(w + pass.rows, w + pass.rows + std::ssize(ids), 0);
    std::fill_n(w + 2 * pass.rows, pass.rows, adapter);
    w[3 * pass.rows] = 0;
    w[3 * pass.rows + 1] = w[3 * pass.rows + 2] = static_cast<int32_t>(ids.size());
    copy_to_device(stream, pass.words.data(), pass.host.data(), pass.words.bytes());
    pass.plan.run(context(), shared);
  }

  const LoadedModel& model;
  const Device device;
  Stream stream;
  Buffer workspace;
  const DType type;
  const size_t row_bytes;
  Buffer some;        // hidden states of the rows whose logits are wanted
  HostBuffer logits;  // of these
  int64_t columns = 0;
  model::RecordedPlan output;
  std::map<int64_t, std::unique_ptr<Pass>> passes;  // by rows
  Buffer shared;                                    // on the CPU, of all plans
};

TokenScorer::TokenScorer(const LoadedModel& model) {
  if (model.config.kind != model::ModelKind::decoder_only)
    throw Error(Errc::invalid_argument, "score", model.folder + " is no language model");
  impl_ = std::make_unique<Impl>(model);
}
TokenScorer::~TokenScorer() = default;

std::vector<TokenScore> TokenScorer::score(std::span<const int32_t> ids, size_t from, int64_t most,
                                           int32_t adapter) {
  Impl& m = *impl_;
  SAT_ASSERT(from >= 1 && from <= ids.size());
  if (std::ssize(ids) > m.model.config.max_positions)
    throw Error(Errc::invalid_argument, "score",
                fmt::format("the text has {} tokens and the model takes {}; shorten it", ids.size(),
                            m.model.config.max_positions));
  std::vector<TokenScore> scores(ids.size() - from);
  if (scores.empty()) return scores;
  Impl::Pass& pass = m.pass_for(std::ssize(ids));
  m.read(pass, ids, adapter);
  const auto vocabulary = static_cast<size_t>(m.model.config.vocab_target);
  std::atomic<bool> finite = true;
  for (size_t done = 0; done < scores.size(); done += kLogitsRows) {
    const size_t rows = std::min<size_t>(kLogitsRows, scores.size() - done);
    // The row of a token scores the one after it.
    copy_on_device(m.stream, m.some.data(),
                   pass.hidden.as<char>() + (from - 1 + done) * m.row_bytes, rows * m.row_bytes);
    m.output.run(m.context(), m.shared);
    m.stream.synchronize();
    parallel_for(static_cast<int64_t>(rows), 1, [&](int64_t begin, int64_t end) {
      std::vector<float> z(vocabulary);
      for (int64_t r = begin; r < end; ++r) {
        to_floats(m.logits.as<char>() + static_cast<size_t>(r * m.columns) * size_of(m.type),
                  m.type, std::ssize(z), z.data());
        const size_t i = done + static_cast<size_t>(r);
        if (!score_row(z, ids[from + i], most, scores[i])) finite = false;
      }
    });
  }
  if (!finite) throw model::NonFiniteScores("score");
  return scores;
}

}  // namespace saturate::train
