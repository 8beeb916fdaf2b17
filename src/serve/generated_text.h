// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer.h"

namespace saturate::serve {

/// The text of tokens as they come: whole characters, and nothing that may turn out to begin a stop
/// string. All pieces together are the text that all tokens give at once.
class GeneratedText {
 public:
  // The text goes on from `prompt`: whether it begins with a space depends on what stands before it.
  // `marks`: special tokens of these names, which are no text, come as their names.
  GeneratedText(data::Tokenizer tokenizer, std::span<const int32_t> prompt,
                std::vector<std::string> stops, std::span<const std::string_view> marks = {});

  // What can be shown now that `id` came; "" once stopped.
  std::string add(int32_t id);
  // What was held back, when no more tokens come.
  std::string finish();
  // A stop string came: it and all behind it are left out.
  bool stopped() const noexcept { return stopped_; }

 private:
  void hold_all();
  std::string release(bool all);

  data::Tokenizer tokenizer_;
  std::vector<std::string> stops_;
  std::vector<int32_t> window_;  // the last tokens shown, then those that are not
  size_t shown_tokens_ = 0;      // of the window
  std::string held_;
  std::vector<std::pair<int32_t, std::string>> marks_;  // those that are no text
  bool stopped_ = false;
};

}  // namespace saturate::serve
