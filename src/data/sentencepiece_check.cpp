// SPDX-License-Identifier: Apache-2.0
#include "data/sentencepiece_check.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace saturate::data {
namespace {

constexpr size_t kMaxTrieUnits = size_t{1} << 20;  // 16 times that of nmt_nfkc

// Protocol buffer wire format.  Source: protobuf.dev, "Encoding".
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  // The next field; `value` is filled for length-delimited ones. False at the end or when
  // malformed.
  bool next(uint64_t& number, std::string_view& value) {
    value = {};
    const auto tag = varint();
    if (!tag) return false;
    number = *tag >> 3;
    switch (*tag & 7) {
      case 0:
        return varint().has_value();
      case 1:
        return skip(8);
      case 2: {
        const auto bytes = varint();
        if (!bytes || *bytes > rest_.size()) return false;
        value = rest_.substr(0, *bytes);
        return skip(*bytes);
      }
      case 5:
        return skip(4);
      default:
        return false;
    }
  }
  bool at_end() const { return rest_.empty(); }

 private:
  bool skip(uint64_t bytes) {
    if (bytes > rest_.size()) return false;
    rest_.remove_prefix(bytes);
    return true;
  }
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }
  std::string_view rest_;
};

// A unit of the trie.  Source: darts-clone (Yata), "Double-array trie", unit layout.
struct Unit {
  uint32_t word;
  bool has_leaf() const { return (word >> 8 & 1) != 0; }
  uint32_t value() const { return word & 0x7FFFFFFFu; }
  uint32_t label() const { return word & 0x800000FFu; }
  uint32_t offset() const { return (word >> 10) << ((word & (1u << 9)) >> 6); }
};

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

  std::vector<char> seen(count);
  std::vector<uint32_t> stack{0};
  seen[0] = 1;
  while (!stack.empty()) {
    const uint32_t at = stack.back();
    stack.pop_back();
    const uint32_t base = at ^ units[at].offset();
    if ((base | 0xFFu) >= count) return kBad;  // children lie at base ^ byte
    if (units[at].has_leaf() && units[base].value() >= string_bytes) return kBad;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t child = base ^ byte;
      if (units[child].label() != byte || seen[child]) continue;
      seen[child] = 1;
      stack.push_back(child);
    }
  }
  return {};
}

}  // namespace

Fit sentencepiece_model_is_sound(std::string_view serialized) noexcept try {
  constexpr uint64_t kNormalizerSpec = 3, kDenormalizerSpec = 5, kPrecompiledCharsmap = 2;
  Fields model(serialized);
  uint64_t number = 0;
  std::string_view value;
  while (model.next(number, value)) {
    if (number != kNormalizerSpec && number != kDenormalizerSpec) continue;
    Fields spec(value);
    uint64_t field = 0;
    std::string_view charsmap;
    while (spec.next(field, charsmap))
      if (field == kPrecompiledCharsmap)
        if (const Fit fit = charsmap_is_sound(charsmap); !fit) return fit;
    if (!spec.at_end()) return {"it is cut short or is no SentencePiece model"};
  }
  if (!model.at_end()) return {"it is cut short or is no SentencePiece model"};
  return {};
} catch (const std::exception&) {
  return {"there is not enough memory to check it"};
}

}  // namespace saturate::data
