// SPDX-License-Identifier: Apache-2.0
#include "train/shortlist_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/counted.h"
#include "base/log.h"
#include "data/text_reader.h"

namespace saturate::train {
namespace {

using Ids = std::vector<int32_t>;

// Fields between single characters; `text` outlives them.
std::vector<std::string_view> fields(std::string_view text, char separator) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) found.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return found;
}

class PieceIds {
 public:
  explicit PieceIds(const data::Tokenizer& t) : pieces_(t.pieces()) {
    for (size_t i = 0; i < pieces_.size(); ++i) ids_.emplace(pieces_[i], static_cast<int32_t>(i));
  }
  std::optional<int32_t> find(std::string_view piece) const {
    const auto at = ids_.find(piece);
    return at == ids_.end() ? std::nullopt : std::optional(at->second);
  }
  // None when one of them is unknown.
  std::optional<Ids> find_all(std::span<const std::string_view> pieces) const {
    Ids found;
    for (const std::string_view piece : pieces) {
      const std::optional<int32_t> id = find(piece);
      if (!id) return std::nullopt;
      found.push_back(*id);
    }
    return found;
  }

 private:
  const std::vector<std::string>& pieces_;  // the tokenizer's, which outlives this
  std::unordered_map<std::string_view, int32_t> ids_;
};

// What one file brings, whatever its format.
class Reading {
 public:
  Reading(const data::Tokenizer& source, const data::Tokenizer& target)
      : source_(source), target_(target) {}

  // False: a piece is unknown.
  bool take_vmap(std::string_view line, const data::TextReader& reader) {
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos || line.find('\t', tab + 1) != std::string_view::npos)
      reader.fail("a line without one tab; CTranslate2's vmap has SOURCE PIECES tab TARGET PIECES");
    const std::optional<Ids> ngram = source_.find_all(fields(line.substr(0, tab), ' '));
    const std::vector<std::string_view> pieces = fields(line.substr(tab + 1), ' ');
    Ids ids;
    for (const std::string_view piece : pieces) {
      if (const auto id = target_.find(piece)) ids.push_back(*id);
    }
    if (!ngram) return false;
    ngram->empty() ? list_.add_always(ids) : list_.add(*ngram, ids);
    return ids.size() == pieces.size();
  }

  bool take_marian(std::string_view line, const data::TextReader& reader) {
    const std::vector<std::string_view> three = fields(line, ' ');
    double probability = 0;
    const bool is_number =
        three.size() == 3 &&
        std::from_chars(three[2].data(), three[2].data() + three[2].size(), probability).ptr ==
            three[2].data() + three[2].size();
    if (!is_number) {
      reader.fail(
          "neither TARGET SOURCE PROBABILITY (Marian's lexical shortlist) nor SOURCE tab TARGET "
          "(CTranslate2's vmap); a binary shortlist is not read, give the text that it was made "
          "of");
    }
    if (three[0] == "NULL" || three[1] == "NULL") return true;
    const std::optional<int32_t> target = target_.find(three[0]), source = source_.find(three[1]);
    if (!target || !source) return false;
    likely_[*source][*target] = probability;
    return true;
  }

  // Of each piece of the source the likeliest, as Marian prunes.
  void end_marian(const ShortlistOptions& o, int32_t vocab, bool shared) {
    Ids first;
    for (int32_t id = 0; id < std::min<int64_t>(o.first, vocab); ++id) first.push_back(id);
    list_.add_always(first);
    if (shared) list_.take_source_tokens();
    for (const auto& [source, targets] : likely_) {
      std::vector<std::pair<double, int32_t>> best;
      for (const auto& [target, p] : targets) {
        if (p > o.threshold) best.emplace_back(p, target);
      }
      std::ranges::sort(best, std::greater());
      best.resize(std::min(best.size(), static_cast<size_t>(std::max<int64_t>(0, o.best))));
      Ids ids;
      for (const auto& [p, target] : best) ids.push_back(target);
      list_.add({source}, ids);
    }
  }
  model::Shortlist& list() { return list_; }

 private:
  PieceIds source_, target_;
  model::Shortlist list_;
  std::map<int32_t, std::unordered_map<int32_t, double>> likely_;  // by source and target
};

}  // namespace

std::shared_ptr<const model::Shortlist> read_shortlist(const std::string& path,
                                                       const data::Tokenizer& source,
                                                       const data::Tokenizer& target,
                                                       const ShortlistOptions& options) {
  constexpr int64_t kLongestLine = int64_t{1} << 26;  // of all that is always there
  data::TextReader reader(path, kLongestLine);
  Reading reading(source, target);
  int64_t lines = 0, unknown = 0;
  bool is_vmap = false;
  for (std::string_view line; reader.next(line); ++lines) {
    if (lines == 0) is_vmap = line.find('\t') != std::string_view::npos;
    unknown +=
        (is_vmap ? reading.take_vmap(line, reader) : reading.take_marian(line, reader)) ? 0 : 1;
  }
  if (unknown == lines) {
    throw Error(
        Errc::invalid_argument, "shortlist",
        fmt::format("{}: none of its lines ({}) has pieces of the model's vocabularies alone; "
                    "it is of another model, make one with saturate shortlist",
                    path, lines));
  }
  if (unknown > 0) {
    log_warning(
        fmt::format("{}: {} of {} {} pieces that the model's vocabularies lack; "
                    "those pieces are left out",
                    path, unknown, counted(lines, "line"), unknown == 1 ? "has" : "have"));
  }
  if (!is_vmap)
    reading.end_marian(options, target.vocab_size(), source.pieces() == target.pieces());
  reading.list().add_always(std::vector<int32_t>{target.eos_id(), target.unk_id()});
  return std::make_shared<model::Shortlist>(std::move(reading.list()));
}

}  // namespace saturate::train
