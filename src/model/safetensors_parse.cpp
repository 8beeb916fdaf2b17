// SPDX-License-Identifier: Apache-2.0
// Reading the header of a file that nobody vouches for.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

// A header of 100 bytes a tensor for 100,000 tensors; the largest public models have a few
// thousand.
constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;
constexpr size_t kMaxRank = 16;

struct ElementType {
  std::string_view name;
  size_t bytes;
};
constexpr ElementType kTypes[] = {{"F32", 4},  {"F16", 2},     {"BF16", 2},   {"F64", 8},
                                  {"I64", 8},  {"I32", 4},     {"I16", 2},    {"I8", 1},
                                  {"U8", 1},   {"U16", 2},     {"U32", 4},    {"U64", 8},
                                  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(Errc::invalid_argument, "safetensors",
              fmt::format("{}: {}; the file is damaged or no safetensors file", where, why));
}

const int64_t& natural(const std::string& where, const std::string& name, const Json& value,
                       const char* what) {
  const int64_t* v = value.if_int();
  if (v == nullptr || *v < 0) {
    refuse(where, fmt::format("tensor \"{}\": a {} is {}, no whole number >= 0", name, what,
                              value.dump().substr(0, 40)));
  }
  return *v;
}

TensorView parse_tensor(const Json::Member& member, std::span<const std::byte> data,
                        const std::string& where) {
  TensorView t;
  t.name = member.key;
  const auto fail = [&](const std::string& why) {
    refuse(where, fmt::format("tensor \"{:.200}\": {}", t.name, why));
  };
  const Json* dtype = member.value.find("dtype");
  const Json* shape = member.value.find("shape");
  const Json* offsets = member.value.find("data_offsets");
  if (dtype == nullptr || dtype->if_string() == nullptr) fail("no dtype");
  if (shape == nullptr || shape->if_array() == nullptr) fail("no shape");
  if (offsets == nullptr || offsets->if_array() == nullptr || offsets->if_array()->size() != 2) {
    fail("no data_offsets [begin, end]");
  }
  t.dtype = *dtype->if_string();
  const size_t element_bytes = safetensors_element_bytes(t.dtype);
  if (element_bytes == 0) fail(fmt::format("unknown dtype \"{:.40}\"", t.dtype));
  if (shape->if_array()->size() > kMaxRank) fail(fmt::format("more than {} dimensions", kMaxRank));

  // The product is held below the file's size at every step, so it cannot overflow; a zero anywhere
  // makes an empty tensor, whatever the other sizes claim.
  uint64_t elements = 1;
  for (const Json& size : *shape->if_array()) {
    t.shape.push_back(natural(where, t.name, size, "size"));
  }
  if (std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end()) {
    elements = 0;
  } else {
    for (const int64_t size : t.shape) {
      if (static_cast<uint64_t>(size) > data.size() / elements) {
        fail(fmt::format("shape {} needs more than the file's {} bytes of data",
                         shape_text(t.shape), data.size()));
      }
      elements *= static_cast<uint64_t>(size);
    }
  }
  const auto begin =
      static_cast<uint64_t>(natural(where, t.name, (*offsets->if_array())[0], "data offset"));
  const auto end =
      static_cast<uint64_t>(natural(where, t.name, (*offsets->if_array())[1], "data offset"));
  if (begin > end || end > data.size()) {
    fail(
        fmt::format("data_offsets [{}, {}] lie outside the {} bytes of data: the file is cut short",
                    begin, end, data.size()));
  }
  if (elements * element_bytes != end - begin) {
    fail(fmt::format("{} {} needs {} bytes, data_offsets give {}", t.dtype, shape_text(t.shape),
                     elements * element_bytes, end - begin));
  }
  t.data = data.data() + begin;
  t.bytes = end - begin;
  return t;
}

}  // namespace

size_t safetensors_element_bytes(std::string_view dtype) noexcept {
  for (const ElementType& t : kTypes) {
    if (t.name == dtype) return t.bytes;
  }
  return 0;
}

int64_t TensorView::elements() const noexcept {
  return static_cast<int64_t>(bytes / safetensors_element_bytes(dtype));
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

std::vector<TensorView> parse_safetensors(std::span<const std::byte> file, const std::string& where,
                                          std::map<std::string, std::string>* metadata) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    refuse(where, fmt::format("{} bytes are too few for a header", file.size()));
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > file.size() - sizeof(header_bytes)) {
    refuse(where, fmt::format("the header claims {} bytes, the file has {}", header_bytes,
                              file.size() - sizeof(header_bytes)));
  }
  if (header_bytes > kMaxHeaderBytes) {
    refuse(where, fmt::format("the header is {} bytes long, the limit is {}", header_bytes,
                              kMaxHeaderBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes),
                              header_bytes);
  const std::span<const std::byte> data = file.subspan(sizeof(header_bytes) + header_bytes);

  JsonLimits limits;
  limits.max_bytes = kMaxHeaderBytes;
  limits.max_depth = 3;
  const Json header = parse_json(text, where, limits);
  if (header.if_object() == nullptr) refuse(where, "the header is no JSON object");

  std::vector<TensorView> tensors;
  for (const Json::Member& member : *header.if_object()) {
    if (member.key != "__metadata__") {
      tensors.push_back(parse_tensor(member, data, where));
      continue;
    }
    if (member.value.if_object() == nullptr) refuse(where, "__metadata__ is no object");
    for (const Json::Member& m : *member.value.if_object()) {
      if (m.value.if_string() == nullptr) refuse(where, "a value of __metadata__ is no text");
      if (metadata != nullptr) (*metadata)[m.key] = *m.value.if_string();
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
  });
  const std::byte* end = data.data();
  for (const TensorView& t : tensors) {
    if (t.data != end) {
      refuse(where,
             fmt::format("tensor \"{:.200}\": its data begins at {}, {} the one before", t.name,
                         t.data - data.data(), t.data < end ? "inside" : "after a hole behind"));
    }
    end = t.data + t.bytes;
  }
  if (end != data.data() + data.size()) {
    refuse(where, fmt::format("{} bytes after the last tensor", data.data() + data.size() - end));
  }
  return tensors;
}

}  // namespace saturate::model
