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

using Message = ProtobufMessage;

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
  event(0, Message().bytes(3, "brain.Event:2"));
  if (resumed_step >= 0) event(resumed_step + 1, Message().message(7, Message().integer(1, 1)));
}

// `field` of an Event, behind its time and step.
void TensorBoardLog::event(int64_t step, const ProtobufMessage& field) {
  const std::string message =
      Message().float64(1, seconds_since_epoch()).integer(2, static_cast<uint64_t>(step)).str() +
      field.str();
  const std::string length = little_endian(static_cast<uint64_t>(message.size()));
  out_.append(length + little_endian(masked_crc(length)) + message +
              little_endian(masked_crc(message)));
}

void TensorBoardLog::scalar(std::string_view tag, int64_t step, double value) {
  const Message entry = Message().bytes(1, tag).float32(2, static_cast<float>(value));
  event(step, Message().message(5, Message().message(1, entry)));
}

void TensorBoardLog::text(std::string_view tag, int64_t step, std::string_view markdown) {
  constexpr uint64_t kString = 7;  // DT_STRING
  const Message shape = Message().message(2, Message().integer(1, 1));
  const Message tensor = Message().integer(1, kString).message(2, shape).bytes(8, markdown);
  const Message metadata = Message().message(1, Message().bytes(1, "text"));
  const Message entry = Message().bytes(1, tag).message(9, metadata).message(8, tensor);
  event(step, Message().message(5, Message().message(1, entry)));
}

void TensorBoardLog::write(const MetricsRow& row) {
  std::string group = kind_of(row);
  if (const auto* valid = std::get_if<ValidRow>(&row)) {
    // "valid/loss" of a set named valid, as most are; "valid/dev/loss" of others.
    if (!valid->set.empty() && valid->set != group) group += "/" + valid->set;
  } else if (const auto* test = std::get_if<TestRow>(&row)) {
    group += "/" + test->set;
  } else if (const auto* routing = std::get_if<RoutingRow>(&row)) {
    group += "/" + routing->layer;
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
