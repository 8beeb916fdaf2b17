// SPDX-License-Identifier: Apache-2.0
// IBM's model 1 over pieces: p(target | source), of all sources of a line one, or none of them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "train/shortlist_file.h"

namespace saturate::train {
namespace {

using Lines = std::vector<std::vector<int32_t>>;

class LexicalModel {
 public:
  LexicalModel(const Lines& source, const Lines& target, int32_t sources, int32_t targets)
      : target_(target),
        lines_(static_cast<size_t>(sources) + 1),
        likely_(lines_.size()),
        dense_(static_cast<size_t>(targets)) {
    begins_.push_back(0);
    for (size_t i = 0; i < target.size(); ++i) {
      begins_.push_back(begins_.back() + target[i].size());
      for (const int32_t id : source[i]) lines_[static_cast<size_t>(id)].push_back(i);
      lines_.back().push_back(i);
    }
    shares_.resize(begins_.back());
  }

  // Every piece of the target shares itself among the sources of its line by their probabilities for it;
  // what a source gets of each becomes its probabilities.
  void round() {
    std::ranges::fill(shares_, 0.0f);
    for (size_t s = 0; s < lines_.size(); ++s) {
      scatter(s);
      each(s, [&](size_t at, size_t t) { shares_[at] += value_of(t); });
      gather(s);
    }
    std::vector<double> counts(dense_.size());
    for (size_t s = 0; s < lines_.size(); ++s) {
      std::vector<int32_t> seen;
      double sum = 0;
      scatter(s);
      each(s, [&](size_t at, size_t t) {
        if (!(shares_[at] > 0)) return;
        const double part = double{value_of(t)} / double{shares_[at]};
        if (counts[t] == 0) seen.push_back(static_cast<int32_t>(t));
        counts[t] += part;
        sum += part;
      });
      gather(s);
      std::ranges::sort(seen);
      likely_[s].clear();
      for (const int32_t t : seen) {
        const double p = std::exchange(counts[static_cast<size_t>(t)], 0.0) / sum;
        if (p > kLeast) likely_[s].emplace_back(static_cast<float>(p), t);
      }
    }
    uniform_ = false;
  }

  // The likeliest of a source, the best first.
  std::vector<int32_t> best(int32_t source, int64_t most) const {
    auto list = likely_[static_cast<size_t>(source)];
    std::ranges::sort(list, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    list.resize(std::min(list.size(), static_cast<size_t>(most)));
    std::vector<int32_t> ids;
    for (const auto& [p, id] : list) ids.push_back(id);
    return ids;
  }

 private:
  static constexpr double kLeast = 1e-5;  // probabilities below it are not kept

  template <class F>
  void each(size_t s, const F& f) const {
    for (const size_t i : lines_[s]) {
      for (size_t j = 0; j < target_[i].size(); ++j)
        f(begins_[i] + j, static_cast<size_t>(target_[i][j]));
    }
  }
  float value_of(size_t t) const { return uniform_ ? 1.0f : dense_[t]; }
  void scatter(size_t s) {
    for (const auto& [p, t] : likely_[s]) dense_[static_cast<size_t>(t)] = p;
  }
  void gather(size_t s) {
    for (const auto& [p, t] : likely_[s]) dense_[static_cast<size_t>(t)] = 0.0f;
  }

  const Lines& target_;
  std::vector<std::vector<size_t>> lines_;  // of each source, once for each time; the last has all
  std::vector<std::vector<std::pair<float, int32_t>>> likely_;
  std::vector<float> dense_;    // the row of one source
  std::vector<float> shares_;   // by target token: the sum over its line's sources
  std::vector<size_t> begins_;  // the first token of each line
  bool uniform_ = true;
};

bool is_plain(const std::string& piece) {
  return !piece.empty() && piece.find_first_of(" \t\n\r") == std::string::npos;
}

std::string line_of(const std::string& source, std::span<const int32_t> ids,
                    const std::vector<std::string>& pieces) {
  std::string line = source + '\t';
  for (const int32_t id : ids) {
    const std::string& piece = pieces[static_cast<size_t>(id)];
    if (!is_plain(piece)) continue;
    if (line.back() != '\t') line += ' ';
    line += piece;
  }
  return line;
}

}  // namespace

std::vector<std::string> make_shortlist(const Lines& source, const Lines& target,
                                        const data::Tokenizer& source_pieces,
                                        const data::Tokenizer& target_pieces,
                                        const ShortlistTraining& o) {
  if (source.size() != target.size() || source.empty()) {
    throw Error(
        Errc::invalid_argument, "shortlist",
        fmt::format("the texts have {} and {} lines; line by line they must be translations "
                    "of each other",
                    source.size(), target.size()));
  }
  std::vector<int64_t> counts(target_pieces.pieces().size());
  for (const auto& line : target) {
    for (const int32_t id : line) ++counts[static_cast<size_t>(id)];
  }
  std::vector<int32_t> common;
  for (int32_t id = 0; id < static_cast<int32_t>(counts.size()); ++id) {
    if (counts[static_cast<size_t>(id)] > 0) common.push_back(id);
  }
  std::ranges::stable_sort(common, std::greater(),
                           [&](int32_t id) { return counts[static_cast<size_t>(id)]; });
  common.resize(std::min(common.size(), static_cast<size_t>(o.common)));
  const auto sources = static_cast<int32_t>(source_pieces.pieces().size());
  LexicalModel lexicon(source, target, sources, static_cast<int32_t>(counts.size()));
  for (int64_t i = 0; i < o.rounds; ++i) lexicon.round();
  std::vector<std::string> lines = {line_of("", common, target_pieces.pieces())};
  for (int32_t s = 0; s < sources; ++s) {
    const std::string& piece = source_pieces.pieces()[static_cast<size_t>(s)];
    const std::vector<int32_t> best = lexicon.best(s, o.best);
    if (!best.empty() && is_plain(piece))
      lines.push_back(line_of(piece, best, target_pieces.pieces()));
  }
  return lines;
}

}  // namespace saturate::train
