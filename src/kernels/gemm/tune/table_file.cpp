// SPDX-License-Identifier: Apache-2.0
// The table as a file: JSON that a person can read, and that survives other people's hands.
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
#include "base/log.h"
#include "kernels/gemm/tune/table.h"

namespace saturate::kernels {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kFormat = "saturate gemm table 1";
constexpr uintmax_t kLargest = 16u << 20;  // bytes; 30,000 entries take 6 MB

const DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32};

Json entry_json(const GemmKey& k, const GemmChoice& c) {
  return {{"type", name_of(k.ab_type)},
          {"out", name_of(k.d_type)},
          {"layout",
           std::string(k.ta == Transpose::yes ? "T" : "N") + (k.tb == Transpose::yes ? "T" : "N")},
          {"tf32", k.tf32},
          {"accumulate", k.accumulates},
          {"bias", k.bias},
          {"aligned", k.aligned},
          {"shape", Json::array({k.m, k.n, k.k})},
          {"impl", c.impl},
          {"config", c.config},
          {"ms", c.ms},
          {"default_ms", c.default_ms}};
}

// Reads fields and remembers the first that is missing or of the wrong kind.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}
  std::string text(const char* name) {
    const Json* v = field(name);
    if (v != nullptr && v->is_string()) return v->get<std::string>();
    return fail(name, "text"), "";
  }
  bool flag(const char* name) {
    const Json* v = field(name);
    if (v != nullptr && v->is_boolean()) return v->get<bool>();
    return fail(name, "true or false"), false;
  }
  double number(const char* name) {
    const Json* v = field(name);
    if (v != nullptr && v->is_number() && v->get<double>() >= 0) return v->get<double>();
    return fail(name, "a number from 0"), 0;
  }
  DType type(const char* name) {
    const std::string given = text(name);
    for (const DType t : kTypes) {
      if (given == name_of(t)) return t;
    }
    return fail(name, "a type"), DType::f32;
  }
  const Json* field(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() ? nullptr : &*at;
  }
  void fail(const char* name, const char* kind) {
    if (problem_.empty()) problem_ = fmt::format("\"{}\" must be {}", name, kind);
  }
  const std::string& problem() const { return problem_; }

 private:
  const Json& object_;
  std::string problem_;
};

// "" or what is wrong.
std::string read_entry(const Json& json, GemmTable& table) {
  if (!json.is_object()) return "is no object";
  Fields f(json);
  GemmKey k;
  k.ab_type = f.type("type");
  k.d_type = f.type("out");
  const std::string layout = f.text("layout");
  if (layout.size() != 2 || layout.find_first_not_of("NT") != std::string::npos) {
    f.fail("layout", "NN, NT, TN or TT");
  } else {
    k.ta = layout[0] == 'T' ? Transpose::yes : Transpose::no;
    k.tb = layout[1] == 'T' ? Transpose::yes : Transpose::no;
  }
  k.tf32 = f.flag("tf32");
  k.accumulates = f.flag("accumulate");
  k.bias = f.flag("bias");
  k.aligned = f.flag("aligned");
  const Json* shape = f.field("shape");
  bool whole = shape != nullptr && shape->is_array() && shape->size() == 3;
  for (size_t i = 0; whole && i < 3; ++i) {
    whole = (*shape)[i].is_number_integer() && (*shape)[i].get<int64_t>() >= 1;
  }
  if (whole) {
    k.m = (*shape)[0].get<int64_t>();
    k.n = (*shape)[1].get<int64_t>();
    k.k = (*shape)[2].get<int64_t>();
  } else {
    f.fail("shape", "three whole numbers from 1");
  }
  GemmChoice choice{f.text("impl"), f.text("config"), f.number("ms"), f.number("default_ms")};
  if (!f.problem().empty()) return f.problem();
  table.set(k, std::move(choice));
  return "";
}

std::string read_entries(const Json& root, GemmTable& table) {
  const auto entries = root.find("entries");
  if (entries == root.end() || !entries->is_array()) return "\"entries\" must be a list";
  for (size_t i = 0; i < entries->size(); ++i) {
    const std::string problem = read_entry((*entries)[i], table);
    if (!problem.empty()) return fmt::format("entry {}: {}", i, problem);
  }
  return "";
}

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

std::string gemm_table_path(const std::string& folder, const TuneMachine& machine) {
  std::string name;
  for (const char c : machine.gpu + "-" + machine.compute) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.';
    const bool upper = c >= 'A' && c <= 'Z';
    name += plain ? c : (upper ? static_cast<char>(c - 'A' + 'a') : '-');
  }
  return folder + "/gemm-" + name + ".json";
}

std::string to_json(const TuneMachine& machine, const GemmTable& table) {
  const Json head = {{"format", kFormat},
                     {"about", "written by `saturate tune gemm`; delete it to start again"},
                     {"gpu", machine.gpu},
                     {"compute", machine.compute},
                     {"driver", machine.driver},
                     {"libraries", machine.libraries}};
  std::string text = head.dump(1, ' ', false, Json::error_handler_t::replace);
  text.resize(text.rfind('\n'));  // without the last brace: entries follow, one a line
  text += ",\n \"entries\": [";
  const char* separator = "\n  ";
  for (const auto& [key, choice] : table.entries()) {
    text +=
        separator + entry_json(key, choice).dump(-1, ' ', false, Json::error_handler_t::replace);
    separator = ",\n  ";
  }
  return text + "\n ]\n}\n";
}

ReadGemmTable read_gemm_table(const std::string& path, const TuneMachine& machine) {
  ReadGemmTable result;
  const auto broken = [&](const std::string& what) {
    result.table = {};
    result.problem = fmt::format(
        "{} is not used: {}; run `saturate tune gemm` again, or delete the file", path, what);
    return result;
  };
  std::error_code error;
  result.exists = fs::exists(path, error);
  if (!result.exists) return result;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) return broken(error.message());
  if (bytes > kLargest) return broken("it is larger than 16 MiB");
  std::ifstream in(path, std::ios::binary);
  if (!in) return broken("it cannot be read");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const Json root = Json::parse(text, nullptr, false);
  if (root.is_discarded()) return broken("it is no JSON (torn, or edited by hand)");
  if (!root.is_object()) return broken("it is no table");
  const auto format = root.find("format");
  if (format == root.end() || *format != kFormat) {
    return broken(fmt::format("its \"format\" is not \"{}\"", kFormat));
  }
  if (const std::string other = difference(root, machine); !other.empty()) {
    return broken(fmt::format("it was measured with {}", other));
  }
  const std::string problem = read_entries(root, result.table);
  return problem.empty() ? result : broken(problem);
}

void merge_gemm_table(const std::string& path, const TuneMachine& machine, const GemmTable& found) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) {
    throw Error(
        Errc::io, "tune",
        fmt::format("cannot make {}: {}; set SATURATE_CACHE to a folder that can be written",
                    fs::path(path).parent_path().string(), error.message()));
  }
  const FileLock lock(path + ".lock");
  ReadGemmTable now = read_gemm_table(path, machine);
  if (!now.problem.empty()) {
    log_warning("[tune] " + now.problem + " (now kept as " + path + ".broken)");
    fs::rename(path, path + ".broken", error);
  }
  for (const auto& [key, choice] : found.entries()) now.table.set(key, choice);
  write_durable_file(path, to_json(machine, now.table));
}

}  // namespace saturate::kernels
