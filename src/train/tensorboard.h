// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/append_file.h"
#include "base/protobuf.h"
#include "train/metrics_log.h"

namespace saturate::train {

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) as TFRecord files use it.
uint32_t crc32c(std::string_view bytes) noexcept;

// Writes one TensorBoard event file, with neither TensorFlow nor protobuf: TFRecord framing around
// Event messages that are encoded by hand.
//
// Errors    Error{io} when the file cannot be created or written.
// Source    field numbers of event.proto, summary.proto and tensor.proto in github.com/tensorflow.
class TensorBoardLog {
 public:
  // Creates <folder>/events.out.tfevents.<seconds>.<host>.<pid>. With resumed_step >= 0 TensorBoard
  // forgets what earlier files of the folder hold after that step.
  explicit TensorBoardLog(const std::filesystem::path& folder, int64_t resumed_step = -1);

  // Numbers become scalars "train/loss", "valid/bleu", ...; those that were not measured are left
  // out. Samples and the configuration become text.
  void write(const MetricsRow& row);

  void scalar(std::string_view tag, int64_t step, double value);
  void text(std::string_view tag, int64_t step, std::string_view markdown);

 private:
  void event(int64_t step, const ProtobufMessage& field);
  AppendFile out_;
};

}  // namespace saturate::train
