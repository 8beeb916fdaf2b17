// SPDX-License-Identifier: Apache-2.0
#include "kernels/tune/tuned_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"

namespace saturate::kernels {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargest = 16u << 20;  // bytes; 30,000 entries take 6 MB

const DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32};

std::string format_of(const char* kind) { return fmt::format("saturate {} table 1", kind); }

// "" or how the machine differs, as "driver 580.1, now 590.2".
std::string difference(const Json& root, const TuneMachine& machine) {
  const std::pair<const char*, const std::string*> parts[] = {{"gpu", &machine.gpu},
                                                              {"compute", &machine.compute},
                                                              {"driver", &machine.driver},
                                                              {"libraries", &machine.libraries}};
  for (const auto& [name, now] : parts) {
    const std::string* given = root[name].if_string();
    const std::string then = given != nullptr ? *given : "unknown";
    if (then != *now) return fmt::format("{} {}, now {}", name, then, *now);
  }
  return "";
}

// Held while a file is read, changed and replaced.
class FileLock {
 public:
  explicit FileLock(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) {
        ::close(fd_);
        fd_ = -1;
      }
    }
    if (fd_ < 0) {
      throw Error(Errc::io, "tune", fmt::format("cannot lock {}: {}", path, std::strerror(errno)));
    }
  }
  ~FileLock() { ::close(fd_); }
  FileLock(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace

double TunedEntry::not_negative(std::string_view key) {
  const double v = number(key);
  if (!(v >= 0)) fail(key, "a number from 0 is needed");
  return v;
}

DType TunedEntry::type(std::string_view key) {
  const std::string& given = text(key);
  for (const DType t : kTypes) {
    if (given == name_of(t)) return t;
  }
  fail(key, "a type is needed");
}

std::vector<int64_t> TunedEntry::whole_numbers(std::string_view key, size_t count, int64_t least,
                                               std::string_view rule) {
  std::vector<int64_t> numbers;
  for (const Json& v : list(key)) {
    if (v.if_int() == nullptr || *v.if_int() < least) fail(key, rule);
    numbers.push_back(*v.if_int());
  }
  if (numbers.size() != count) fail(key, rule);
  return numbers;
}

std::string tuned_file_path(const std::string& folder, const char* kind,
                            const TuneMachine& machine) {
  std::string name;
  for (const char c : machine.gpu + "-" + machine.compute) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.';
    const bool upper = c >= 'A' && c <= 'Z';
    name += plain ? c : (upper ? static_cast<char>(c - 'A' + 'a') : '-');
  }
  return fmt::format("{}/{}-{}.json", folder, kind, name);
}

std::string tuned_file_text(const char* kind, const TuneMachine& machine,
                            std::span<const std::string> entries) {
  const Json head = {
      {"format", format_of(kind)},
      {"about", fmt::format("written by `saturate tune {}`; delete it to start again", kind)},
      {"gpu", machine.gpu},
      {"compute", machine.compute},
      {"driver", machine.driver},
      {"libraries", machine.libraries}};
  std::string text = head.dump(1);
  text.resize(text.rfind('\n'));  // without the last brace: entries follow, one a line
  text += ",\n \"entries\": [";
  const char* separator = "\n  ";
  for (const std::string& entry : entries) {
    text += separator + entry;
    separator = ",\n  ";
  }
  return text + "\n ]\n}\n";
}

std::string read_tuned_file(const std::string& path, const char* kind, const TuneMachine& machine,
                            bool& exists, const std::function<void(TunedEntry&)>& add) {
  const auto broken = [&](const std::string& what) {
    return fmt::format("{} is not used: {}; run `saturate tune {}` again, or delete the file", path,
                       what, kind);
  };
  std::error_code error;
  exists = fs::exists(path, error);
  if (!exists) return "";
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) return broken(error.message());
  if (bytes > kLargest) return broken("it is larger than 16 MiB");
  std::ifstream in(path, std::ios::binary);
  if (!in) return broken("it cannot be read");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::optional<Json> parsed = try_parse_json(text);
  if (!parsed) return broken("it is no JSON (torn, or edited by hand)");
  const Json& root = *parsed;
  if (root["format"] != format_of(kind))
    return broken(fmt::format("its \"format\" is not \"{}\"", format_of(kind)));
  if (const std::string other = difference(root, machine); !other.empty())
    return broken(fmt::format("it was measured with {}", other));
  const Json::Array* entries = root["entries"].if_array();
  if (entries == nullptr) return broken("\"entries\" must be a list");
  try {
    for (size_t i = 0; i < entries->size(); ++i) {
      TunedEntry entry((*entries)[i], "tune", fmt::format("entry {}", i));
      add(entry);
    }
  } catch (const Error& e) {
    return broken(e.what());
  }
  return "";
}

void update_tuned_file(const std::string& path, const std::function<std::string()>& read,
                       const std::function<std::string()>& text) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) {
    throw Error(
        Errc::io, "tune",
        fmt::format("cannot make {}: {}; set SATURATE_CACHE to a folder that can be written",
                    fs::path(path).parent_path().string(), error.message()));
  }
  const FileLock lock(path + ".lock");
  if (const std::string problem = read(); !problem.empty()) {
    log_warning("[tune] " + problem + " (now kept as " + path + ".broken)");
    fs::rename(path, path + ".broken", error);
  }
  write_durable_file(path, text());
}

}  // namespace saturate::kernels
