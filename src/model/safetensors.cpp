// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "model/marian_npz.h"
#include "model/npz_file.h"
#include "model/torch_file.h"

namespace saturate::model {

namespace {

// The file to open of a folder, the safer format first.
std::optional<std::string> weights_of(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"}) {
    const std::filesystem::path file = std::filesystem::path(folder) / name;
    if (std::filesystem::exists(file)) return file.string();
  }
  if (is_marian_folder(folder)) return marian_files(folder).weights;
  return std::nullopt;
}

}  // namespace

struct SafetensorsReader::Mapping {
  explicit Mapping(const std::string& path) {
    const auto fail = [&path](int error_number) {
      throw Error(Errc::io, "safetensors",
                  fmt::format("{}: {}", path, std::strerror(error_number)));
    };
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(errno);
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      const int error_number = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
      ::close(fd);
      fail(error_number);
    }
    bytes = static_cast<size_t>(info.st_size);
    if (bytes > 0) data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error_number = errno;
    ::close(fd);
    if (data == MAP_FAILED) fail(error_number);
  }
  ~Mapping() {
    if (bytes > 0) ::munmap(data, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> span() const { return {static_cast<const std::byte*>(data), bytes}; }

  void* data = nullptr;
  size_t bytes = 0;
  std::deque<std::vector<std::byte>> unpacked;  // of compressed arrays
};

bool holds_weights(const std::string& folder) { return weights_of(folder).has_value(); }

void SafetensorsReader::release(const TensorView& t) const noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const auto& m : mappings_) {
    const std::span<const std::byte> all = m->span();
    if (t.data < all.data() || t.data >= all.data() + all.size()) continue;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(t.data) + page - 1) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(t.data + t.bytes) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::string file = path;
  if (fs::is_directory(path)) {
    const std::optional<std::string> found = weights_of(path);
    if (!found) {
      throw Error(
          Errc::io, "safetensors",
          fmt::format("{}: neither model.safetensors nor model.safetensors.index.json nor "
                      "pytorch_model.bin is in this folder; give the folder of a saved model",
                      path));
    }
    file = *found;
  }
  if (file.ends_with(".json")) {
    open_index(file);
  } else {
    tensors_ = open_file(file);
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  take_scales();
}

void SafetensorsReader::take_scales() {
  std::vector<std::string> taken;
  for (TensorView& t : tensors_) {
    if (t.dtype != "I8" || t.shape.size() != 2) continue;
    const TensorView* const s = find(t.name + "_scale");
    if (s == nullptr) continue;
    const std::vector<int64_t> rows{t.shape[0], 1}, columns{1, t.shape[1]};
    if (s->shape != rows && s->shape != columns) {
      throw Error(Errc::invalid_argument, "safetensors",
                  fmt::format("{}: tensor \"{}\" is {}: the scales of \"{}\" {} must be {} or {}",
                              path_, s->name, shape_text(s->shape), t.name, shape_text(t.shape),
                              shape_text(rows), shape_text(columns)));
    }
    auto scales = std::make_shared<std::vector<float>>(static_cast<size_t>(s->elements()));
    read_floats(*s, 0, *scales);
    t.scales = std::move(scales);
    t.scales_of_columns = s->shape != rows;
    taken.push_back(s->name);
  }
  std::erase_if(tensors_,
                [&](const TensorView& t) { return std::ranges::count(taken, t.name) > 0; });
}

std::vector<TensorView> SafetensorsReader::open_file(const std::string& file) {
  mappings_.push_back(std::make_unique<Mapping>(file));
  if (file.ends_with(".bin")) return parse_torch_file(mappings_.back()->span(), file);
  if (file.ends_with(".npz"))
    return parse_npz(mappings_.back()->span(), file, mappings_.back()->unpacked);
  return parse_safetensors(mappings_.back()->span(), file, &metadata_);
}

void SafetensorsReader::open_index(const std::string& index) {
  const auto fail = [&index](const std::string& why) {
    throw Error(Errc::invalid_argument, "safetensors", fmt::format("{}: {}", index, why));
  };
  const Json json = read_json_file(index);
  const Json* map = json.find("weight_map");
  if (map == nullptr || map->if_object() == nullptr) fail("no weight_map object");

  std::map<std::string, std::vector<std::string>> names_by_file;
  for (const Json::Member& m : *map->if_object()) {
    const std::string* file = m.value.if_string();
    if (file == nullptr) fail(fmt::format("the file of tensor \"{:.200}\" is no text", m.key));
    // A shard lies beside its index: a path would let a download read files elsewhere.
    if (file->empty() || file->find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      fail(fmt::format("\"{:.200}\" is no plain file name", *file));
    }
    names_by_file[*file].push_back(m.key);
  }
  const std::filesystem::path folder = std::filesystem::path(index).parent_path();
  for (auto& [file, names] : names_by_file) {
    std::vector<TensorView> found = open_file((folder / file).string());
    std::sort(names.begin(), names.end());
    size_t matched = 0;
    for (TensorView& t : found) {
      if (!std::binary_search(names.begin(), names.end(), t.name)) continue;
      ++matched;
      tensors_.push_back(std::move(t));
    }
    if (matched != names.size()) {
      fail(fmt::format("{} of the {} tensors that it places in {} are not there",
                       names.size() - matched, names.size(), file));
    }
  }
}

const TensorView* SafetensorsReader::find(std::string_view name) const noexcept {
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorView& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace saturate::model
