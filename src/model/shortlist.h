// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace saturate::model {

/// Which tokens a translation may hold, by what its source says: those that are always there, and those
/// that stand beside n-grams of the source. The output layer then computes these alone. What a source
/// gets depends on nothing else. Immutable once filled; any thread may read.
///
/// Source  lexical shortlists: Schwenk et al., NAACL 2012; Devlin, EMNLP 2017; as Marian and CTranslate2
///         (vmap) have them.
class Shortlist {
 public:
  using Ids = std::vector<int32_t>;
  // Tokens of every translation.
  void add_always(std::span<const int32_t> targets);
  // Tokens that come with an n-gram of the source, one id or several. More than once: all of them.
  void add(const Ids& ngram, std::span<const int32_t> targets);
  // The source's own ids come too: where both sides have one vocabulary, words that stay as they are.
  void take_source_tokens() { takes_source_ = true; }

  // Ids for this source, ascending, each once. Cost: of the n-grams that the table has, one look-up for
  // each position, and a sort of what they bring.
  Ids candidates(std::span<const int32_t> source) const;
  // N-grams that bring tokens.
  int64_t size() const noexcept { return static_cast<int64_t>(table_.size()); }

 private:
  bool takes_source_ = false;
  size_t longest_ = 0;
  Ids always_;
  std::map<Ids, Ids> table_;
};

}  // namespace saturate::model
