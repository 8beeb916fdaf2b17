// SPDX-License-Identifier: Apache-2.0
#include "train/state_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "model/finite.h"

namespace saturate::train {
namespace {

// One parameter's part of one saved array.
struct SavedPart {
  StateArray array;
  const ParameterSpec& parameter;
  std::string name() const { return fmt::format("{}/{}", saved_name(array), parameter.name); }
  std::vector<int64_t> shape() const { return {parameter.rows, parameter.cols}; }
};

std::vector<SavedPart> saved_parts(const ParameterStore& store) {
  std::vector<SavedPart> parts;
  for (const StateArray a : kStateArrays) {
    for (const ParameterSpec& p : store.specs()) {
      if (saved_name(a) != nullptr && store.group_of(p).keeps(a, store.purpose()))
        parts.push_back({a, p});
    }
  }
  return parts;
}

const char* file_type(const ParameterStore& store) {
  return store.wide_type() == DType::f64 ? "F64" : "F32";
}

// Calls `move` for each piece of a part that this rank holds: its memory on the device, its place
// in the tensor and its length, all in bytes, at most `most` at once.
void for_owned(const ParameterStore& store, const SavedPart& part, size_t most,
               const std::function<void(char* memory, size_t place, size_t bytes)>& move) {
  const ParameterSpec& p = part.parameter;
  const ParameterGroup& group = store.group_of(p);
  const size_t element = size_of(store.wide_type());
  for (const OwnedRange& r : group.owned()) {
    const int64_t begin = std::max(r.begin, p.offset), end = std::min(r.end, p.offset + p.size());
    if (begin >= end) continue;
    char* const memory = group.array(part.array).as<char>() +
                         static_cast<size_t>(r.local + begin - r.begin) * element;
    const auto place = static_cast<size_t>(begin - p.offset) * element;
    const auto bytes = static_cast<size_t>(end - begin) * element;
    for (size_t at = 0; at < bytes; at += most)
      move(memory + at, place + at, std::min(most, bytes - at));
  }
}

}  // namespace

std::vector<model::TensorSpec> state_tensors(const ParameterStore& store) {
  std::vector<model::TensorSpec> specs;
  for (const SavedPart& part : saved_parts(store))
    specs.push_back({part.name(), file_type(store), part.shape()});
  return specs;
}

void write_owned(model::SafetensorsWriter& file, const ParameterStore& store,
                 const Stream& stream) {
  constexpr size_t kChunk = size_t{16} << 20;
  const bool gpu = store.device().is_cuda();
  const DType type = store.wide_type();
  const HostBuffer staging(store.device(), gpu ? kChunk : 0);
  const std::vector<SavedPart> parts = saved_parts(store);
  for (size_t i = 0; i < parts.size(); ++i) {
    for_owned(store, parts[i], kChunk, [&](char* memory, size_t place, size_t bytes) {
      const char* host = gpu ? staging.as<char>() : memory;
      if (gpu) {
        copy_to_host(stream, staging.data(), memory, bytes);
        stream.synchronize();
      }
      if (parts[i].array == StateArray::master)
        model::require_finite(parts[i].parameter.name, type, host, bytes / size_of(type));
      file.write_at(i, place, std::as_bytes(std::span(host, bytes)));
    });
  }
}

void read_owned(const model::SafetensorsReader& file, ParameterStore& store, const Stream& stream) {
  constexpr size_t kChunk = size_t{4} << 20;
  const HostBuffer staging(store.device(), kChunk);  // aligned, as the file is not
  const DType type = store.wide_type();
  for (const SavedPart& part : saved_parts(store)) {
    const model::TensorView* t = file.find(part.name());
    if (t == nullptr || t->shape != part.shape() || t->dtype != file_type(store)) {
      const auto text = [](std::string_view kind, std::span<const int64_t> shape) {
        return fmt::format("{} {}", kind, model::shape_text(shape));
      };
      throw Error(Errc::invalid_argument, "checkpoint",
                  fmt::format("{}: {} is {}, this model needs {}; resume with the model's own "
                              "configuration or start in a new folder",
                              file.path(), part.name(), t ? text(t->dtype, t->shape) : "missing",
                              text(file_type(store), part.shape())));
    }
    for_owned(store, part, kChunk, [&](char* memory, size_t place, size_t bytes) {
      std::memcpy(staging.data(), t->data + place, bytes);
      if (part.array == StateArray::master &&
          model::first_not_finite(type, staging.data(), bytes / size_of(type)) <
              bytes / size_of(type)) {
        throw Error(Errc::invalid_argument, "checkpoint",
                    file.path() +
                        ": the weights are not finite; remove this checkpoint to resume from "
                        "the one before");
      }
      copy_to_device(stream, memory, staging.data(), bytes);
      stream.synchronize();  // before the staging is filled again
    });
  }
  store.refresh_compute(stream);
  stream.synchronize();
}

}  // namespace saturate::train
