// SPDX-License-Identifier: Apache-2.0
// Element conversions and checksums.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24 is exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 0xFFu : exponent - 15 + 127;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

template <class Stored, class Convert>
void convert(const std::byte* src, std::span<float> out, Convert to_float) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;  // the file aligns nothing
    std::memcpy(&stored, src + i * sizeof(Stored), sizeof(Stored));
    out[i] = to_float(stored);
  }
}

void scaled(const TensorView& t, int64_t first, const std::byte* src, std::span<float> out) {
  const int64_t columns = t.shape[1];
  int64_t row = first / columns, column = first % columns;
  for (size_t i = 0; i < out.size(); ++row, column = 0) {
    const auto count = std::min(static_cast<size_t>(columns - column), out.size() - i);
    const auto* const q = reinterpret_cast<const int8_t*>(src + i);
    float* const to = out.data() + i;
    if (t.scales_of_columns) {
      const float* const scale = t.scales->data() + column;
      for (size_t c = 0; c < count; ++c) to[c] = static_cast<float>(q[c]) * scale[c];
    } else {
      const float scale = (*t.scales)[static_cast<size_t>(row)];
      for (size_t c = 0; c < count; ++c) to[c] = static_cast<float>(q[c]) * scale;
    }
    i += count;
  }
}

}  // namespace

void read_floats(const TensorView& tensor, int64_t first, std::span<float> out) {
  SAT_ASSERT(first >= 0 && first + static_cast<int64_t>(out.size()) <= tensor.elements());
  if (out.empty()) return;
  const std::byte* src =
      tensor.data + static_cast<size_t>(first) * safetensors_element_bytes(tensor.dtype);
  if (tensor.dtype == "F32") {
    std::memcpy(out.data(), src, out.size_bytes());
  } else if (tensor.dtype == "BF16") {
    convert<uint16_t>(src, out, from_bf16);
  } else if (tensor.dtype == "F16") {
    convert<uint16_t>(src, out, from_f16);
  } else if (tensor.dtype == "F64") {
    convert<double>(src, out, [](double v) { return static_cast<float>(v); });
  } else if (tensor.dtype == "I8" && tensor.scales != nullptr) {
    scaled(tensor, first, src, out);
  } else {
    throw Error(Errc::unsupported, "safetensors",
                fmt::format("tensor \"{}\" is {}: weights are read from F32, F16, BF16 and F64",
                            tensor.name, tensor.dtype));
  }
}

uint64_t xxh3(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t xxh3_file(const std::string& path) {
  const auto fail = [&path]() {
    throw Error(Errc::io, "checksum", fmt::format("{}: {}", path, std::strerror(errno)));
  };
  std::ifstream in(path, std::ios::binary);
  if (!in) fail();
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (state == nullptr || XXH3_64bits_reset(state.get()) != XXH_OK) {
    throw Error(Errc::out_of_memory, "checksum", path + ": no memory for a checksum");
  }
  std::vector<char> block(size_t{1} << 18);  // hashed while the second-level cache has it
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
    XXH3_64bits_update(state.get(), block.data(), static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) fail();
  return XXH3_64bits_digest(state.get());
}

}  // namespace saturate::model
