// SPDX-License-Identifier: Apache-2.0
// Protocol Buffer messages without their library: SentencePiece models are read, TensorBoard's events and Perfetto's traces
// written.  Source: protobuf.dev, "Encoding".
#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace saturate {

// A message field by field. A view: the bytes must outlive it.
class ProtobufFields {
 public:
  explicit ProtobufFields(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    uint64_t number = 0;
    uint64_t integer = 0;    // of a varint field
    std::string_view bytes;  // of a length-delimited or fixed-size field
  };

  // The next field; false at the end or when malformed.
  bool next(Field& field) {
    const auto tag = varint();
    if (!tag) return false;
    field = {.number = *tag >> 3, .integer = 0, .bytes = {}};
    switch (*tag & 7) {
      case 0: {
        const auto value = varint();
        field.integer = value.value_or(0);
        return value.has_value();
      }
      case 1:
        return take(8, field.bytes);
      case 2: {
        const auto size = varint();
        return size && take(*size, field.bytes);
      }
      case 5:
        return take(4, field.bytes);
      default:
        return false;
    }
  }
  bool at_end() const { return rest_.empty(); }

 private:
  bool take(uint64_t size, std::string_view& bytes) {
    if (size > rest_.size()) return false;
    bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
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

// A message being written, in the order of the calls.
class ProtobufMessage {
 public:
  ProtobufMessage& integer(uint32_t field, uint64_t value) {
    return varint(uint64_t{field} << 3).varint(value);
  }
  ProtobufMessage& float64(uint32_t field, double value) {
    return varint(uint64_t{field} << 3 | 1).fixed(std::bit_cast<uint64_t>(value));
  }
  ProtobufMessage& float32(uint32_t field, float value) {
    return varint(uint64_t{field} << 3 | 5).fixed(std::bit_cast<uint32_t>(value));
  }
  ProtobufMessage& bytes(uint32_t field, std::string_view value) {
    varint(uint64_t{field} << 3 | 2).varint(value.size());
    out_ += value;
    return *this;
  }
  ProtobufMessage& message(uint32_t field, const ProtobufMessage& value) {
    return bytes(field, value.out_);
  }
  const std::string& str() const { return out_; }
  void clear() { out_.clear(); }

 private:
  ProtobufMessage& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
    return *this;
  }
  template <class Word>
  ProtobufMessage& fixed(Word word) {  // little endian
    for (size_t i = 0; i < sizeof word; ++i) out_ += static_cast<char>(word >> (8 * i) & 0xFF);
    return *this;
  }
  std::string out_;
};

}  // namespace saturate
