// SPDX-License-Identifier: Apache-2.0
#include "kernels/tune/tuned_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"

namespace saturate::kernels {
namespace {

using Json = nlohmann::ordered_json;
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
    const auto at = root.find(name);
    const std::string then =
        at != root.end() && at->is_string() ? at->get<std::string>() : "unknown";
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

struct TunedEntry::Fields {
  Json object;
  std::string problem;
  const Json* find(const char* name) const {
    const auto at = object.find(name);
    return at == object.end() ? nullptr : &*at;
  }
};

TunedEntry::TunedEntry(const std::string& json)
    : fields_(std::make_unique<Fields>(Fields{Json::parse(json, nullptr, false), ""})) {}
TunedEntry::~TunedEntry() = default;
TunedEntry::TunedEntry(TunedEntry&&) noexcept = default;

bool TunedEntry::is_object() const { return fields_->object.is_object(); }
const std::string& TunedEntry::problem() const { return fields_->problem; }
void TunedEntry::fail(const char* name, const char* rule) {
  if (fields_->problem.empty()) fields_->problem = fmt::format("\"{}\" must be {}", name, rule);
}
std::string TunedEntry::text(const char* name) {
  const Json* v = fields_->find(name);
  if (v != nullptr && v->is_string()) return v->get<std::string>();
  return fail(name, "text"), "";
}
bool TunedEntry::flag(const char* name) {
  const Json* v = fields_->find(name);
  if (v != nullptr && v->is_boolean()) return v->get<bool>();
  return fail(name, "true or false"), false;
}
double TunedEntry::number(const char* name) {
  const Json* v = fields_->find(name);
  if (v != nullptr && v->is_number() && v->get<double>() >= 0) return v->get<double>();
  return fail(name, "a number from 0"), 0;
}
std::optional<DType> TunedEntry::type(const char* name) {
  const std::string given = text(name);
  for (const DType t : kTypes) {
    if (given == name_of(t)) return t;
  }
  return fail(name, "a type"), std::nullopt;
}
std::vector<int64_t> TunedEntry::whole_numbers(const char* name, size_t count, int64_t least,
                                               const char* rule) {
  const Json* v = fields_->find(name);
  std::vector<int64_t> numbers;
  bool whole = v != nullptr && v->is_array() && v->size() == count;
  for (size_t i = 0; whole && i < count; ++i) {
    whole = (*v)[i].is_number_integer() && (*v)[i].get<int64_t>() >= least;
    if (whole) numbers.push_back((*v)[i].get<int64_t>());
  }
  if (whole) return numbers;
  return fail(name, rule), std::vector<int64_t>();
}

std::string tune_cache_folder() {
  const auto set = [](const char* name) {
    const char* v = std::getenv(name);
    return std::string(v != nullptr ? v : "");
  };
  if (const std::string own = set("SATURATE_CACHE"); !own.empty()) return own;
  if (const std::string xdg = set("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/saturate";
  if (const std::string home = set("HOME"); !home.empty()) return home + "/.cache/saturate";
  return "";
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
  std::string text = head.dump(1, ' ', false, Json::error_handler_t::replace);
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
                            bool& exists, const std::function<std::string(TunedEntry&)>& add) {
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
  // What is nested deeper than an entry's fields is left out: it would be written by recursion.
  constexpr int kDeepest = 8;
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; };
  const Json root = Json::parse(text, shallow, false);
  if (root.is_discarded()) return broken("it is no JSON (torn, or edited by hand)");
  if (!root.is_object()) return broken("it is no table");
  const auto format = root.find("format");
  if (format == root.end() || *format != format_of(kind)) {
    return broken(fmt::format("its \"format\" is not \"{}\"", format_of(kind)));
  }
  if (const std::string other = difference(root, machine); !other.empty()) {
    return broken(fmt::format("it was measured with {}", other));
  }
  const auto entries = root.find("entries");
  if (entries == root.end() || !entries->is_array()) return broken("\"entries\" must be a list");
  for (size_t i = 0; i < entries->size(); ++i) {
    TunedEntry entry((*entries)[i].dump(-1, ' ', false, Json::error_handler_t::replace));
    const std::string problem = entry.is_object() ? add(entry) : "is no object";
    if (!problem.empty()) return broken(fmt::format("entry {}: {}", i, problem));
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
