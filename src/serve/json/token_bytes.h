// SPDX-License-Identifier: Apache-2.0
// The tokens of a vocabulary by their bytes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "model/model_config.h"

namespace saturate::serve {

// Ids that end a continuation of the model.
std::vector<int32_t> ends_of(const model::ModelConfig& config);

// Special tokens that stand within calls of functions and are no text, as a byte that no text has.
struct TokenMark {
  char byte;
  std::string_view name;
};
inline constexpr TokenMark kTokenMarks[] = {{'\xFE', "[CALL_ID]"}, {'\xFF', "[ARGS]"}};

// The bytes that each token adds behind a text, by id; empty for those that add none (special tokens) or
// none of their own (unknown ones), which no constrained text may hold; of marks their byte. Cost: each token is decoded once, some
// microseconds.
// Of as many ids as the model has, ends being none of them.
std::vector<std::string> token_bytes(const data::Tokenizer& tokenizer,
                                     const model::ModelConfig& config);

// A set of tokens, a bit each, 32 a word, the lowest first.
using TokenMask = std::vector<uint32_t>;
inline void allow_token(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
}

// Tokens as a tree of their bytes, in preorder: what lies in a node follows it, up to its end.
struct TokenTree {
  struct Node {
    unsigned char byte;
    int32_t end;    // the node behind all that lie in this one
    int32_t first;  // of `ids`: tokens of just these bytes, up to the next node's
  };
  std::vector<Node> nodes;  // and one more, without bytes, at the end
  std::vector<int32_t> ids;

  // Of the tokens `chosen`, none without bytes.
  TokenTree(std::span<const std::string> bytes, std::vector<int32_t> chosen);
  int32_t size() const { return static_cast<int32_t>(nodes.size()) - 1; }
};

/// What a mask is made from. Immutable: for all threads.
class TokenBytes {
 public:
  // `bytes` by id.
  explicit TokenBytes(std::vector<std::string> bytes);

  size_t words() const { return (bytes_.size() + 31) / 32; }
  const std::string& of(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }
  size_t size() const { return bytes_.size(); }

  // All tokens, and those that are not plain: plain ones are whole characters that may lie anywhere within
  // the text of a JSON string, at most kPlain of them.
  const TokenTree& all() const { return all_; }
  const TokenTree& special() const { return special_; }
  static constexpr int32_t kPlain = 32;
  // Plain tokens of at most so many characters; -1: of any number.
  const TokenMask& plain(int32_t characters) const;
  // The ids of just these bytes.
  std::span<const int32_t> those_of(std::string_view bytes) const;
  // Whether tokens can spell it: as one, or byte by byte.
  bool spells(std::string_view character) const;

 private:
  const std::vector<std::string> bytes_;
  std::vector<TokenMask> plain_;
  TokenTree all_, special_;
};

}  // namespace saturate::serve
