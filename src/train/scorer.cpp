// SPDX-License-Identifier: Apache-2.0
#include "train/scorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "data/batch.h"
#include "model/finite.h"
#include "runtime/memory.h"
#include "train/loss_tape.h"

namespace saturate::train {
namespace {

// Rows of one sequence of a batch: ids go in, labels are predicted.
struct Piece {
  size_t text = 0;
  std::span<const int32_t> source, ids, labels;
};

int64_t rounded(int64_t rows) { return (rows + 7) / 8 * 8; }

data::BatchShape shape_for(std::span<const Piece> pieces, int64_t batch_tokens, bool translates) {
  data::BatchShape s;
  int64_t source = 0, target = 0;
  for (const Piece& p : pieces) {
    source += std::ssize(p.source);
    target += std::ssize(p.labels);
    s.max_source = std::max<int64_t>(s.max_source, std::ssize(p.source));
    s.max_target = std::max<int64_t>(s.max_target, std::ssize(p.labels));
  }
  // No more rows than there are tokens: a batch costs the same whatever part of it is used.
  s.target_rows = rounded(std::max(s.max_target, std::min(batch_tokens, target)));
  if (translates) s.source_rows = rounded(std::max(s.max_source, std::min(batch_tokens, source)));
  s.sequences = std::min<int64_t>(std::ssize(pieces), s.target_rows);
  return s;
}

class Scorer {
 public:
  Scorer(const LoadedModel& m, const data::BatchShape& shape)
      : layout_(shape),
        start_(static_cast<int32_t>(m.config.decoder_start_id)),
        device_(m.store->device()),
        stream_(device_),
        host_(device_, static_cast<size_t>(layout_.words) * sizeof(int32_t)),
        batch_(device_, host_.bytes()),
        totals_(device_, 4 * sizeof(double)),
        nll_(device_, static_cast<size_t>(shape.target_rows) * size_of(m.store->wide_type())),
        host_nll_(device_, nll_.bytes()),
        workspace_(device_, device_.is_cuda() ? kWorkspaceBytes : 0),
        tape_(*m.store, TapeMode::inference, nullptr) {
    SAT_ASSERT(m.store->wide_type() == DType::f32);
    fill_bytes(stream_, totals_.data(), 0, totals_.bytes());
    record_loss(tape_, *m.transformer, layout_, batch_.as<int32_t>(),
                {.totals = totals_.as<double>(), .nll = nll_.data()});
    arena_ = Buffer(device_, tape_.plan());
    fill_bytes(stream_, arena_.data(), 0, arena_.bytes());
  }

  // Adds the scores of as many pieces as fit; the number of those.
  size_t run(std::span<const Piece> pieces, std::vector<TextScore>& scores) {
    const data::BatchShape& shape = layout_.shape;
    int32_t* const words = host_.as<int32_t>();
    std::fill_n(words, layout_.words, 0);
    std::fill_n(words + layout_.labels, shape.target_rows, -1);
    int64_t source_rows = 0, target_rows = 0;
    size_t count = 0;
    for (const Piece& p : pieces) {
      if (static_cast<int64_t>(count) == shape.sequences ||
          source_rows + std::ssize(p.source) > shape.source_rows ||
          target_rows + std::ssize(p.labels) > shape.target_rows)
        break;
      std::ranges::copy(p.labels, words + layout_.labels + target_rows);
      if (shape.source_rows > 0) {
        place(layout_.source, source_rows, count, p.source, {});
        place(layout_.target, target_rows, count, p.ids, {&start_, 1});
      } else {
        place(layout_.target, target_rows, count, p.ids, {});
      }
      ++count;
    }
    for (int64_t i = static_cast<int64_t>(count); i < shape.sequences; ++i) {
      if (shape.source_rows > 0)
        words[layout_.source.cu + i + 1] = static_cast<int32_t>(source_rows);
      words[layout_.target.cu + i + 1] = static_cast<int32_t>(target_rows);
    }
    if (shape.source_rows > 0) words[layout_.source.valid] = static_cast<int32_t>(source_rows);
    words[layout_.target.valid] = static_cast<int32_t>(target_rows);

    const Context ctx{device_, stream_.native(), workspace_.data(), workspace_.bytes()};
    copy_to_device(stream_, batch_.data(), host_.data(), batch_.bytes());
    tape_.run(ctx, arena_.data(), false);
    copy_to_host(stream_, host_nll_.data(), nll_.data(), nll_.bytes());
    stream_.synchronize();
    const float* nll = host_nll_.as<float>();
    for (const Piece& p : pieces.first(count)) {
      TextScore& s = scores[p.text];
      s.log_probability -= std::accumulate(nll, nll + p.labels.size(), 0.0);
      s.tokens += std::ssize(p.labels);
      nll += p.labels.size();
      if (!std::isfinite(s.log_probability)) throw model::NonFiniteScores("score");
    }
    return count;
  }

 private:
  // `first`, then `ids`, as sequence `count` from row `rows` on.
  void place(const data::SideLayout& side, int64_t& rows, size_t count,
             std::span<const int32_t> ids, std::span<const int32_t> first) {
    int32_t* const words = host_.as<int32_t>();
    int32_t* const to = std::ranges::copy(first, words + side.ids + rows).out;
    std::ranges::copy(ids, to);
    const auto length = std::ssize(first) + std::ssize(ids);
    std::iota(words + side.positions + rows, words + side.positions + rows + length, 0);
    rows += length;
    words[side.cu + static_cast<int64_t>(count) + 1] = static_cast<int32_t>(rows);
  }

  const data::BatchLayout layout_;
  const int32_t start_;
  const Device device_;
  Stream stream_;
  HostBuffer host_;
  Buffer batch_, totals_, nll_;
  HostBuffer host_nll_;
  Buffer workspace_;
  Tape tape_;
  Buffer arena_;
};

}  // namespace

std::vector<TextScore> score_texts(const LoadedModel& m, int64_t batch_tokens,
                                   std::span<const ScoredText> texts) {
  const bool translates = m.config.kind == model::ModelKind::encoder_decoder;
  const auto most = static_cast<size_t>(m.config.max_positions);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::span<const int32_t> source = texts[i].source, target = texts[i].target;
    if (translates) {
      for (const auto& [side, ids] : {std::pair{"source", source}, std::pair{"target", target}}) {
        if (ids.size() <= most) continue;
        throw Error(Errc::invalid_argument, "score",
                    fmt::format("the {} of line {} has {} tokens and the model takes {}; split or "
                                "shorten it",
                                side, i + 1, ids.size(), most));
      }
      pieces.push_back({i, source, target.first(target.size() - 1), target});
      continue;
    }
    for (size_t at = 0; at + 1 < target.size(); at += most) {
      const size_t length = std::min(most, target.size() - 1 - at);
      pieces.push_back({i, {}, target.subspan(at, length), target.subspan(at + 1, length)});
    }
  }
  std::vector<TextScore> scores(texts.size());
  if (pieces.empty()) return scores;
  Scorer scorer(m, shape_for(pieces, batch_tokens, translates));
  for (std::span<const Piece> left = pieces; !left.empty();) {
    left = left.subspan(scorer.run(left, scores));
  }
  return scores;
}

}  // namespace saturate::train
