// SPDX-License-Identifier: Apache-2.0
#include "train/text_identity.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "train/corpora.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

// FNV-1a, 64 bit.
uint64_t hash_of(std::string_view bytes, uint64_t h = 0xcbf29ce484222325ull) {
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

bool is_file(const std::string& path) {
  std::error_code error;
  return path != "-" && fs::is_regular_file(path, error);
}

std::vector<std::string> fingerprints(const RunConfig& config,
                                      const std::vector<std::string>& paths, const char* which) {
  std::vector<std::string> all;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string copy = copy_of_text(config.out, which, i, paths[i]);
    all.push_back(fingerprint_of_file(is_file(paths[i]) || !is_file(copy) ? paths[i] : copy));
  }
  return all;
}

Json::Array list(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

}  // namespace

std::string fingerprint_of_file(const std::string& path) {
  std::error_code error;
  if (path == "-" || (fs::exists(path, error) && !fs::is_regular_file(path, error)))
    return "a pipe";
  const uint64_t size = fs::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) return "a file that cannot be read";
  constexpr uint64_t kPart = 65536;
  std::string part(kPart, '\0');
  uint64_t h = hash_of("");
  for (const uint64_t at : {uint64_t{0}, size / 2, size > kPart ? size - kPart : 0}) {
    in.clear();
    in.seekg(static_cast<std::streamoff>(at));
    in.read(part.data(), static_cast<std::streamsize>(kPart));
    h = hash_of({part.data(), static_cast<size_t>(in.gcount())}, h);
  }
  return fmt::format("{} bytes (samples {:016x})", size, h);
}

TextIdentity text_identity(const RunConfig& config) {
  return {.train = fingerprints(config, config.data.train, "train"),
          .valid = fingerprints(config, config.data.valid, "valid"),
          .metric = config.validate.metric};
}

Json to_json(const TextIdentity& texts) {
  return Json{{"train", list(texts.train)}, {"valid", list(texts.valid)}, {"metric", texts.metric}};
}

TextIdentity text_identity_from(const Json& state, const std::string& path) {
  const Json* saved = state.find("texts");
  if (saved == nullptr) return {};
  JsonFields fields(*saved, "resume", path + ", texts");
  const auto list = [&](const char* name) {
    std::vector<std::string> all;
    for (const Json& item : fields.list(name)) {
      if (item.if_string() == nullptr) fields.fail(name, "a list of strings is needed");
      all.push_back(*item.if_string());
    }
    return all;
  };
  return {.train = list("train"), .valid = list("valid"), .metric = fields.text("metric")};
}

void check_same_text(const TextIdentity& before, const TextIdentity& now, const RunConfig& config) {
  if (before.train.empty() || before.train == now.train) return;
  const std::string remedy = fmt::format(
      "its place in the text would be another; resume with the text that it had, or start a new "
      "run from its model: --init-from {}/model and another --out",
      config.out);
  if (before.train.size() != now.train.size()) {
    throw Error(Errc::invalid_argument, "resume",
                fmt::format("data.train: the run had {} training files and now has {}; {}",
                            before.train.size(), now.train.size(), remedy));
  }
  for (size_t i = 0; i < now.train.size(); ++i) {
    if (before.train[i] == now.train[i]) continue;
    throw Error(Errc::invalid_argument, "resume",
                fmt::format("{}: it was {} when the run last wrote a checkpoint and is {} now; {}",
                            config.data.train[i], before.train[i], now.train[i], remedy));
  }
}

bool judges_alike(const TextIdentity& before, const TextIdentity& now) {
  if (before.train.empty()) return true;  // written by an earlier version
  return before.valid == now.valid && before.metric == now.metric;
}

}  // namespace saturate::train
