// SPDX-License-Identifier: Apache-2.0
// Tables of the tokens that translations may hold (model/shortlist.h): read, and made from two texts.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/shortlist.h"

namespace saturate::train {

struct ShortlistOptions {
  // Of Marian's files alone, and as it counts: the so many first ids of the target are always there, and
  // of each piece of the source the so many likeliest, with more than this probability.
  int64_t first = 100, best = 100;
  double threshold = 0;
};

// Two formats, told apart by their first line; plain, gzip or zstd:
//
//   Marian       TARGET SOURCE PROBABILITY, a line each (lex.s2t); pieces called NULL are left out.
//                Where both vocabularies are one, a source's own pieces come too.
//   CTranslate2  SOURCE PIECES tab TARGET PIECES, with spaces between (vmap.txt); no source: always.
//
// End-of-sentence and <unk> are always there. Lines with a piece that the vocabulary lacks are left out,
// and a warning counts them. Errors: io; invalid_argument, naming file:line, for other text, and for a
// file none of whose lines is of this vocabulary.
std::shared_ptr<const model::Shortlist> read_shortlist(const std::string& path,
                                                       const data::Tokenizer& source,
                                                       const data::Tokenizer& target,
                                                       const ShortlistOptions& options = {});

struct ShortlistTraining {
  int64_t common = 100;  // the target's most frequent pieces, always there
  int64_t best = 50;     // of each piece of the source
  int64_t rounds = 4;    // of expectation and maximisation
};

// The lines of a vmap.txt from lines and their translations, by the lexical probabilities of IBM's model 1:
// deterministic, in one thread. Errors: invalid_argument for texts of different length or without lines.
// Cost: two passes a round over all pairs of pieces that share a line; 8 bytes for each different pair.
// Source  Brown et al., Computational Linguistics 19(2), 1993.
std::vector<std::string> make_shortlist(const std::vector<std::vector<int32_t>>& source,
                                        const std::vector<std::vector<int32_t>>& target,
                                        const data::Tokenizer& source_pieces,
                                        const data::Tokenizer& target_pieces,
                                        const ShortlistTraining& options = {});

}  // namespace saturate::train
