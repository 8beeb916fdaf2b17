// SPDX-License-Identifier: Apache-2.0
#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>

namespace saturate::train {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0u);
    table[i] = c;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

// A CRC stored beside its data is masked, so that the CRC of the whole stays meaningful.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

template <class Word>
std::string little_endian(Word word) {
  std::string bytes;
  for (size_t i = 0; i < sizeof word; ++i) bytes += static_cast<char>(word >> (8 * i) & 0xFF);
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}

// Protobuf fields; the key is number * 8 + wire type.
std::string integer_field(uint32_t number, int64_t value) {
  return varint(number << 3) + varint(static_cast<uint64_t>(value));
}
std::string double_field(uint32_t number, double value) {
  return varint(number << 3 | 1) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string bytes_field(uint32_t number, std::string_view value) {
  return varint(number << 3 | 2) + varint(value.size()) + std::string(value);
}
std::string float_field(uint32_t number, float value) {
  return varint(number << 3 | 5) + little_endian(std::bit_cast<uint32_t>(value));
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A block of code in Markdown, so that nothing in the text is taken for markup.
std::string code_block(std::string_view text) {
  std::string block = "    ";
  for (const char c : text) block += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return block + "\n\n";
}

std::string new_file_in(const std::filesystem::path& folder) {
  std::error_code ignored;  // opening the file reports
  std::filesystem::create_directories(folder, ignored);
  return folder / fmt::format("events.out.tfevents.{:010d}.{}.{}",
                              static_cast<int64_t>(seconds_since_epoch()), host_name(), getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) noexcept {
  uint32_t c = ~0u;
  for (const char b : bytes) c = kCrcTable[(c ^ static_cast<uint8_t>(b)) & 0xFF] ^ c >> 8;
  return ~c;
}

TensorBoardLog::TensorBoardLog(const std::filesystem::path& folder, int64_t resumed_step)
    : out_(new_file_in(folder)) {
  event(0, bytes_field(3, "brain.Event:2"));
  if (resumed_step >= 0) event(resumed_step + 1, bytes_field(7, integer_field(1, 1)));
}

void TensorBoardLog::event(int64_t step, std::string_view field) {
  const std::string message =
      double_field(1, seconds_since_epoch()) + integer_field(2, step) + std::string(field);
  const std::string length = little_endian(static_cast<uint64_t>(message.size()));
  out_.append(length + little_endian(masked_crc(length)) + message +
              little_endian(masked_crc(message)));
}

void TensorBoardLog::scalar(std::string_view tag, int64_t step, double value) {
  const std::string entry = bytes_field(1, tag) + float_field(2, static_cast<float>(value));
  event(step, bytes_field(5, bytes_field(1, entry)));
}

void TensorBoardLog::text(std::string_view tag, int64_t step, std::string_view markdown) {
  constexpr int64_t kString = 7;  // DT_STRING
  const std::string shape = bytes_field(2, integer_field(1, 1));
  const std::string tensor =
      integer_field(1, kString) + bytes_field(2, shape) + bytes_field(8, markdown);
  const std::string metadata = bytes_field(1, bytes_field(1, "text"));
  const std::string entry = bytes_field(1, tag) + bytes_field(9, metadata) + bytes_field(8, tensor);
  event(step, bytes_field(5, bytes_field(1, entry)));
}

void TensorBoardLog::write(const MetricsRow& row) {
  std::string group = kind_of(row);
  if (const auto* valid = std::get_if<ValidRow>(&row)) {
    // "valid/loss" of a set named valid, as most are; "valid/dev/loss" of others.
    if (!valid->set.empty() && valid->set != group) group += "/" + valid->set;
  } else if (const auto* test = std::get_if<TestRow>(&row)) {
    group += "/" + test->set;
  }
  for (const auto& [name, value] : numbers_of(row)) {
    if (std::isfinite(value)) scalar(fmt::format("{}/{}", group, name), step_of(row), value);
  }
  if (const auto* sample = std::get_if<SampleRow>(&row)) {
    text(fmt::format("sample/{}", sample->index), sample->step,
         "source\n\n" + code_block(sample->source) + "hypothesis\n\n" +
             code_block(sample->hypothesis) + "reference\n\n" + code_block(sample->reference));
  } else if (const auto* header = std::get_if<RunHeader>(&row)) {
    std::string lines;
    for (const auto& [key, value] : header->config) lines += fmt::format("{} = {}\n", key, value);
    text("run/config", header->step, code_block(lines));
  }
}

}  // namespace saturate::train
