// SPDX-License-Identifier: Apache-2.0
// The safetensors file format: u64 header length, a JSON header, then the tensors' bytes.
// Source: github.com/huggingface/safetensors, "Format".
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/durable_file.h"

namespace saturate::model {

// One tensor of an open file. `data` is borrowed from the reader and aligned to nothing.
struct TensorView {
  std::string name;
  std::string dtype;  // as the file says it: "F32", "BF16", "F16", "I64", ...
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  // Of an I8 tensor whose reader found its scales (SafetensorsReader): one a row, or one a column.
  std::shared_ptr<const std::vector<float>> scales = {};
  bool scales_of_columns = false;
  int64_t elements() const noexcept;
};

// Bytes of one element; 0 for a type that the format does not know.
size_t safetensors_element_bytes(std::string_view dtype) noexcept;

// "(2, 3)", for messages.
std::string shape_text(std::span<const int64_t> shape);

// Checks a whole file image and returns its tensors in the order of their offsets, which must cover
// the data without hole or overlap. Memory is bounded by the header bytes that are really there.
// Errors: invalid_argument, naming `where`, the tensor and the broken rule.
std::vector<TensorView> parse_safetensors(std::span<const std::byte> file, const std::string& where,
                                          std::map<std::string, std::string>* metadata = nullptr);

// Elements [first, first + out.size()) of an F32, BF16, F16 or F64 tensor as floats, or of an I8 tensor
// with its scales. Errors: unsupported for another dtype.
void read_floats(const TensorView& tensor, int64_t first, std::span<float> out);

/// A file mapped for reading, or the sharded files that an index names. Owns the mappings: views
/// live as long as this object. Safe to read from several threads. The files must not shrink
/// meanwhile. A tensor NAME of I8 and its NAME_scale, of shape (rows, 1) or (1, columns), are one
/// tensor.
class SafetensorsReader {
 public:
  // `path`: a .safetensors, .bin (torch_file.h) or .npz file, a model.safetensors.index.json, or a
  // folder that holds one of them. Errors: io, invalid_argument.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  const std::string& path() const noexcept { return path_; }
  const std::vector<TensorView>& tensors() const noexcept { return tensors_; }  // sorted by name
  const TensorView* find(std::string_view name) const noexcept;                 // null: none
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  // Gives back the memory that reading a tensor took; who reads it again has it read again.
  void release(const TensorView& tensor) const noexcept;

 private:
  struct Mapping;
  std::vector<TensorView> open_file(const std::string& file);
  void open_index(const std::string& index);
  void take_scales();

  std::string path_;
  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Whether a folder has files that SafetensorsReader opens.
bool holds_weights(const std::string& folder);

struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

/// Streams tensors into a file in the order of `tensors`; the file appears at `path` on commit()
/// only, synced, and the one before stays until then. Space is reserved at the start, so that a
/// full disk shows at once. Errors: io, with the bytes needed and free.
class SafetensorsWriter {
 public:
  // Metadata always holds {"format": "pt"}, which transformers asks for.
  SafetensorsWriter(const std::string& path, const std::vector<TensorSpec>& tensors,
                    std::map<std::string, std::string> metadata = {});
  // A file that several processes write: begin() by one of them puts header and size at `path`, then
  // each one's writer of the same tensors takes write_at() for its own bytes, and its commit() syncs
  // them. Whether together they wrote all is theirs to see to.
  static void begin(const std::string& path, const std::vector<TensorSpec>& tensors);
  SafetensorsWriter(const std::string& path, const std::vector<TensorSpec>& tensors,
                    DurableFile::Join join);
  // The next bytes of the tensors laid end to end; a call may end anywhere.
  void write(std::span<const std::byte> bytes);
  void write(std::span<const float> values) { write(std::as_bytes(values)); }
  // Bytes from `place` on of one tensor, in any order; every byte of the file is written once.
  void write_at(size_t tensor, uint64_t place, std::span<const std::byte> bytes);
  void commit();  // every byte of every tensor must have been written

  // Size of the file that the constructor would begin.
  static uint64_t file_bytes(const std::vector<TensorSpec>& tensors,
                             std::map<std::string, std::string> metadata = {});

 private:
  bool joined_ = false;
  uint64_t total_ = 0;
  DurableFile file_;
  std::vector<uint64_t> begins_;  // of each tensor, and the end of the last, in the file
};

// XXH3, 64 bits, seed 0; the file is read in blocks. Errors: io.
uint64_t xxh3(std::span<const std::byte> bytes) noexcept;
uint64_t xxh3_file(const std::string& path);

}  // namespace saturate::model
