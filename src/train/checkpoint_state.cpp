// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "base/error.h"
#include "kernels/fp8/fp8.h"
#include "model/finite.h"
#include "ops/factors.h"
#include "train/held_values.h"

namespace saturate::train {
namespace {

// One parameter's part of one saved array.
struct SavedPart {
  StateArray array;
  const ParameterSpec& parameter;
  // The few numbers of a parameter that every rank has.
  bool is_few() const { return array == StateArray::factors || array == StateArray::fp8_sites; }
  int64_t place_of_few() const {
    return array == StateArray::factors ? parameter.factors : parameter.fp8_sites;
  }
  std::string name() const { return fmt::format("{}/{}", saved_name(array), parameter.name); }
  std::vector<int64_t> shape() const {
    if (array == StateArray::factors) return {1, factor_count(parameter)};
    if (array == StateArray::fp8_sites)
      return {kernels::kFp8Roles, sizeof(kernels::Fp8Site) / sizeof(float)};
    const SavedShape s = saved_shape(parameter);
    return {s.rows, s.cols};
  }
};

// What `store` has of a file.
std::vector<SavedPart> saved_parts(const ParameterStore& store, Purpose purpose, StateFile which) {
  std::vector<SavedPart> parts;
  for (const StateArray a : kStateArrays) {
    if (saved_name(a) == nullptr || (a == StateArray::residual) != (which == StateFile::residual))
      continue;
    for (const ParameterSpec& p : store.specs()) {
      if (a == StateArray::fp8_sites && p.fp8_sites < 0) continue;
      if (store.group_of(p).keeps(a, purpose) && !p.elsewhere) parts.push_back({a, p});
    }
  }
  return parts;
}

const char* file_type(const ParameterStore& store, StateArray a) {
  return store.wide_type() == DType::f64 && a != StateArray::fp8_sites ? "F64" : "F32";
}

// Tables of a vocabulary were written with the rows that padded it to a multiple of 64.
bool fits(const model::TensorView& t, const SavedPart& part, const ParameterStore& store) {
  const std::vector<int64_t> shape = part.shape();
  const bool padded = part.parameter.padding_rows > 0 && !part.is_few() &&
                      t.shape == std::vector<int64_t>{(shape[0] + 63) / 64 * 64, shape[1]};
  return (t.shape == shape || padded) && t.dtype == file_type(store, part.array);
}

size_t bytes_of_few(const SavedPart& part, const ParameterGroup& group) {
  const std::vector<int64_t> shape = part.shape();
  return static_cast<size_t>(shape[0] * shape[1]) * size_of(group.type_of(part.array));
}

// FNV-1a over whole numbers.
uint64_t hash_of(const std::vector<int64_t>& values) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const int64_t v : values) h = (h ^ static_cast<uint64_t>(v)) * 0x100000001b3ull;
  return h;
}

}  // namespace

std::vector<model::TensorSpec> state_tensors(const ParameterStore& all, Purpose purpose,
                                             StateFile which) {
  std::vector<model::TensorSpec> specs;
  const auto add = [&](const SavedPart& part) {
    specs.push_back({part.name(), file_type(all, part.array), part.shape()});
  };
  if (which == StateFile::residual) {  // a store without ranks keeps none
    for (const ParameterSpec& p : all.specs())
      if (!p.frozen) add({StateArray::residual, p});
    return specs;
  }
  for (const SavedPart& part : saved_parts(all, purpose, which)) add(part);
  return specs;
}

std::vector<Share> shares_of_copies(const ParameterStore& store, const Layout& layout,
                                    const Together& ranks) {
  std::vector<uint64_t> mine;
  for (const ParameterGroup& group : store.groups()) {
    std::vector<int64_t> facts = {static_cast<int64_t>(group.kind()), group.count(),
                                  layout.group(group.axes()).ranks.front()};
    for (const auto axis : group.axes()) facts.push_back(static_cast<int64_t>(axis));
    for (const OwnedRange& r : group.owned()) facts.insert(facts.end(), {r.begin, r.end});
    mine.push_back(hash_of(facts));
  }
  std::vector<Share> shares(mine.size(), {0, 0});
  for (int root = 0; root < ranks.size(); ++root) {
    const std::vector<uint64_t> theirs = ranks.from(root, mine);
    for (size_t g = 0; g < mine.size(); ++g) {
      if (std::ranges::find(theirs, mine[g]) == theirs.end()) continue;
      if (root == ranks.rank()) shares[g].rank = shares[g].ranks;
      ++shares[g].ranks;
    }
  }
  return shares;
}

void write_owned(model::SafetensorsWriter& file, const std::vector<model::TensorSpec>& tensors,
                 const ParameterStore& store, const Stream& stream,
                 const std::vector<Share>& shares, StateFile which) {
  constexpr size_t kChunk = size_t{16} << 20;
  const DType type = store.wide_type();
  const size_t element = size_of(type);
  const auto most = static_cast<int64_t>(kChunk / element);
  HeldValues held(store, stream, store.device().is_cuda() ? most : 0);
  std::map<std::string_view, size_t> numbers;
  for (size_t i = 0; i < tensors.size(); ++i) numbers[tensors[i].name] = i;
  std::vector<char> values;
  for (const SavedPart& part : saved_parts(store, store.purpose(), which)) {
    const size_t tensor = numbers.at(part.name());
    const ParameterGroup& group = store.group_of(part.parameter);
    const Share share =
        shares.empty() ? Share{} : shares[static_cast<size_t>(part.parameter.group)];
    if (part.is_few()) {
      // Of all ranks that have them, one writes.
      if (share.rank > 0 || (!group.owns_all() && group.sharing().position > 0)) continue;
      values.resize(bytes_of_few(part, group));
      copy_to_host(stream, values.data(), group.at(part.array, part.place_of_few()), values.size());
      stream.synchronize();
      file.write_at(tensor, 0, std::as_bytes(std::span(values)));
      continue;
    }
    for_held(store, part.parameter, part.array, Held::owned, share, most,
             [&](char* memory, int64_t elements, std::span<const HeldRun> runs) {
               const char* const host = held.load(group, part.array, memory, elements);
               for (const HeldRun& run : runs) {
                 const char* const from = host + static_cast<size_t>(run.at) * element;
                 const auto count = static_cast<size_t>(run.length);
                 if (part.array == StateArray::master)
                   model::require_finite(part.parameter.name, type, from, count);
                 file.write_at(tensor, static_cast<uint64_t>(run.whole) * element,
                               std::as_bytes(std::span(from, count * element)));
               }
             });
  }
}

void read_owned(const model::SafetensorsReader& file, ParameterStore& store, const Stream& stream,
                StateFile which) {
  constexpr size_t kChunk = size_t{4} << 20;
  const HostBuffer staging(store.device(), kChunk);  // aligned, as the file is not
  const DType type = store.wide_type();
  const size_t element = size_of(type);
  HeldValues held(store, stream, 0);
  for (const SavedPart& part : saved_parts(store, store.purpose(), which)) {
    const model::TensorView* t = file.find(part.name());
    // A run that goes on in fp8 finds its scales anew.
    if (t == nullptr && part.array == StateArray::fp8_sites) continue;
    if (t == nullptr || !fits(*t, part, store)) {
      const auto text = [](std::string_view kind, std::span<const int64_t> shape) {
        return fmt::format("{} {}", kind, model::shape_text(shape));
      };
      throw Error(Errc::invalid_argument, "checkpoint",
                  fmt::format("{}: {} is {}, this model needs {}; resume with the model's own "
                              "configuration or start in a new folder",
                              file.path(), part.name(), t ? text(t->dtype, t->shape) : "missing",
                              text(file_type(store, part.array), part.shape())));
    }
    if (part.is_few()) {
      const ParameterGroup& group = store.group_of(part.parameter);
      copy_to_device(stream, group.at(part.array, part.place_of_few()), t->data,
                     bytes_of_few(part, group));
      stream.synchronize();
      continue;
    }
    for_held(store, part.parameter, part.array, Held::in_memory, {},
             static_cast<int64_t>(kChunk / element),
             [&](char* memory, int64_t elements, std::span<const HeldRun> runs) {
               const size_t bytes = static_cast<size_t>(elements) * element;
               std::memset(staging.data(), 0, bytes);  // rows that no file holds
               for (const HeldRun& run : runs)
                 std::memcpy(staging.as<char>() + static_cast<size_t>(run.at) * element,
                             t->data + static_cast<size_t>(run.whole) * element,
                             static_cast<size_t>(run.length) * element);
               if (part.array == StateArray::master &&
                   model::first_not_finite(type, staging.data(), static_cast<size_t>(elements)) <
                       static_cast<size_t>(elements)) {
                 throw Error(
                     Errc::invalid_argument, "checkpoint",
                     file.path() +
                         ": the weights are not finite; remove this checkpoint to resume from "
                         "the one before");
               }
               held.store(store.group_of(part.parameter), part.array, memory, elements,
                          staging.as<char>());
             });
  }
  store.refresh_compute(stream);
  stream.synchronize();
}

}  // namespace saturate::train
