// SPDX-License-Identifier: Apache-2.0
#include "data/sentencepiece_check.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/protobuf.h"

namespace saturate::data {
namespace {

constexpr size_t kMaxTrieUnits = size_t{1} << 20;  // 16 times that of nmt_nfkc

// A unit of the trie.  Source: darts-clone (Yata), "Double-array trie", unit layout.
struct Unit {
  uint32_t word;
  bool has_leaf() const { return (word >> 8 & 1) != 0; }
  uint32_t value() const { return word & 0x7FFFFFFFu; }
  uint32_t label() const { return word & 0x800000FFu; }
  uint32_t offset() const { return (word >> 10) << ((word & (1u << 9)) >> 6); }
};

}  // namespace

// charsmap = trie bytes (u32), trie, normalised strings that the leaves point into.
Fit charsmap_is_sound(std::string_view blob) {
  constexpr Fit kBad{"its normalisation table points outside itself"};
  if (blob.empty()) return {};
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof trie_bytes) return kBad;
  std::memcpy(&trie_bytes, blob.data(),
              sizeof trie_bytes);  // little endian, as the hosts we build for
  blob.remove_prefix(sizeof trie_bytes);
  const size_t count = trie_bytes / sizeof(Unit);
  if (trie_bytes > blob.size() || trie_bytes % sizeof(Unit) != 0 || count == 0) return kBad;
  if (count > kMaxTrieUnits) return {"its normalisation table is too large"};
  std::vector<Unit> units(count);
  std::memcpy(units.data(), blob.data(), trie_bytes);
  const size_t string_bytes = blob.size() - trie_bytes;

  // By base the units that it may lead to: a byte leads to base ^ byte, whose label is the byte. A list of each,
  // since to look at all 256 places of every node takes milliseconds at each start.
  constexpr auto kNone = static_cast<uint32_t>(-1);
  std::vector<uint32_t> first(count, kNone), next(count, kNone);
  for (uint32_t unit = 0; unit < count; ++unit) {
    const uint32_t label = units[unit].label();
    if (label > 0xFFu || (unit ^ label) >= count)
      continue;  // a leaf's value; a base that is refused
    next[unit] = first[unit ^ label];
    first[unit ^ label] = unit;
  }
  std::vector<char> seen(count);
  std::vector<uint32_t> stack{0};
  seen[0] = 1;
  while (!stack.empty()) {
    const uint32_t at = stack.back();
    stack.pop_back();
    const uint32_t base = at ^ units[at].offset();
    if ((base | 0xFFu) >= count) return kBad;  // children lie at base ^ byte
    if (units[at].has_leaf() && units[base].value() >= string_bytes) return kBad;
    for (uint32_t child = first[base]; child != kNone; child = next[child]) {
      if (seen[child]) continue;
      seen[child] = 1;
      stack.push_back(child);
    }
  }
  return {};
}

Fit sentencepiece_model_is_sound(std::string_view serialized) noexcept try {
  constexpr uint64_t kNormalizerSpec = 3, kDenormalizerSpec = 5, kPrecompiledCharsmap = 2;
  ProtobufFields model(serialized);
  for (ProtobufFields::Field part; model.next(part);) {
    if (part.number != kNormalizerSpec && part.number != kDenormalizerSpec) continue;
    ProtobufFields spec(part.bytes);
    for (ProtobufFields::Field field; spec.next(field);)
      if (field.number == kPrecompiledCharsmap)
        if (const Fit fit = charsmap_is_sound(field.bytes); !fit) return fit;
    if (!spec.at_end()) return {"it is cut short or is no SentencePiece model"};
  }
  if (!model.at_end()) return {"it is cut short or is no SentencePiece model"};
  return {};
} catch (const std::exception&) {
  return {"there is not enough memory to check it"};
}

}  // namespace saturate::data
