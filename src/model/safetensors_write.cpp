// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "model/safetensors.h"

namespace saturate::model {
namespace {

struct Layout {
  std::string header;  // length field included, padded to a multiple of 8 bytes
  uint64_t data_bytes = 0;
  std::vector<uint64_t> begins;  // of each tensor in the data
};

Layout lay_out(const std::vector<TensorSpec>& tensors,
               std::map<std::string, std::string> metadata) {
  metadata.try_emplace("format", "pt");
  Json facts;
  for (const auto& [key, value] : metadata) facts.add(key, value);
  Json header;
  header.add("__metadata__", facts);
  Layout layout;
  for (const TensorSpec& t : tensors) {
    uint64_t bytes = safetensors_element_bytes(t.dtype);
    SAT_ASSERT(bytes > 0);
    Json::Array shape;
    for (const int64_t size : t.shape) {
      SAT_ASSERT(size >= 0);
      bytes *= static_cast<uint64_t>(size);
      shape.emplace_back(size);
    }
    layout.begins.push_back(layout.data_bytes);
    const auto begin = static_cast<int64_t>(layout.data_bytes);
    layout.data_bytes += bytes;
    const auto end = static_cast<int64_t>(layout.data_bytes);
    header.add(t.name, Json{{"dtype", t.dtype},
                            {"shape", std::move(shape)},
                            {"data_offsets", Json::Array{begin, end}}});
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  layout.header.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  layout.header += text;
  return layout;
}

}  // namespace

uint64_t SafetensorsWriter::file_bytes(const std::vector<TensorSpec>& tensors,
                                       std::map<std::string, std::string> metadata) {
  const Layout layout = lay_out(tensors, std::move(metadata));
  return layout.header.size() + layout.data_bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<TensorSpec>& tensors,
                                     std::map<std::string, std::string> metadata)
    : total_(file_bytes(tensors, metadata)), file_(path, total_) {
  const Layout layout = lay_out(tensors, std::move(metadata));
  file_.write(layout.header.data(), layout.header.size());
  for (const uint64_t begin : layout.begins) begins_.push_back(layout.header.size() + begin);
  begins_.push_back(total_);
}

void SafetensorsWriter::begin(const std::string& path, const std::vector<TensorSpec>& tensors) {
  const Layout layout = lay_out(tensors, {});
  DurableFile file(path, layout.header.size() + layout.data_bytes);
  file.write(layout.header.data(), layout.header.size());
  file.commit(DurableFile::Rest::kept);
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<TensorSpec>& tensors, DurableFile::Join join)
    : joined_(true), total_(file_bytes(tensors)), file_(path, join) {
  const Layout layout = lay_out(tensors, {});
  for (const uint64_t begin : layout.begins) begins_.push_back(layout.header.size() + begin);
  begins_.push_back(total_);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  SAT_ASSERT(file_.bytes_written() + bytes.size() <= total_);
  file_.write(bytes.data(), bytes.size());
}

void SafetensorsWriter::write_at(size_t tensor, uint64_t place, std::span<const std::byte> bytes) {
  SAT_ASSERT(begins_.at(tensor) + place + bytes.size() <= begins_.at(tensor + 1));
  file_.write_at(begins_[tensor] + place, bytes.data(), bytes.size());
}

void SafetensorsWriter::commit() {
  SAT_ASSERT(joined_ || file_.bytes_written() == total_);
  file_.commit();
}

}  // namespace saturate::model
