// SPDX-License-Identifier: Apache-2.0
#include "model/hf_tokenizer.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/json.h"

namespace saturate::model {
namespace {

void copy_durably(const std::string& from, const std::string& to) {
  std::ifstream in(from, std::ios::binary);
  if (!in) throw Error(Errc::io, "save", fmt::format("{}: {}", from, std::strerror(errno)));
  DurableFile out(to);
  std::array<char, 1 << 16> block;
  while (in.read(block.data(), block.size()), in.gcount() > 0) {
    out.write(block.data(), static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) throw Error(Errc::io, "save", fmt::format("{}: {}", from, std::strerror(errno)));
  out.commit();
}

void write_vocabulary(const std::string& path, const std::vector<std::string>& pieces,
                      const MarianTokenizerFiles& files) {
  const auto fail = [&path](const std::string& why) {
    throw Error(Errc::invalid_argument, "save", fmt::format("{}: {}", path, why));
  };
  const std::set<std::string> distinct(pieces.begin(), pieces.end());
  if (distinct.size() != pieces.size()) fail("a piece occurs twice in the vocabulary");
  for (const std::string& special : {files.unk_piece, files.eos_piece, files.pad_piece}) {
    if (!distinct.contains(special)) {
      fail(fmt::format("the vocabulary lacks the piece {}, which MarianTokenizer needs", special));
    }
  }
  Json::Object map;
  for (size_t id = 0; id < pieces.size(); ++id)
    map.push_back({pieces[id], static_cast<int64_t>(id)});
  write_json_file(path, Json(std::move(map)));
}

}  // namespace

void save_marian_tokenizer(const std::string& folder, const MarianTokenizerFiles& files) {
  const auto in_folder = [&folder](const char* name) {
    return (std::filesystem::path(folder) / name).string();
  };
  const bool separate = !files.target_pieces.empty();
  write_vocabulary(in_folder("vocab.json"), files.source_pieces, files);
  if (separate) write_vocabulary(in_folder("target_vocab.json"), files.target_pieces, files);
  copy_durably(files.source_spm, in_folder("source.spm"));
  copy_durably(files.target_spm, in_folder("target.spm"));
  Json config = {{"tokenizer_class", "MarianTokenizer"}, {"separate_vocabs", separate},
                 {"unk_token", files.unk_piece},         {"eos_token", files.eos_piece},
                 {"pad_token", files.pad_piece},         {"model_max_length", files.max_length}};
  if (!files.source_language.empty()) config.add("source_lang", files.source_language);
  if (!files.target_language.empty()) config.add("target_lang", files.target_language);
  write_json_file(in_folder("tokenizer_config.json"), config);
}

}  // namespace saturate::model
