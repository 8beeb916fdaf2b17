// SPDX-License-Identifier: Apache-2.0
#include "serve/generated_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace saturate::serve {
namespace {

// Tokens before the first: enough for the space between words, and for a character of several.
constexpr size_t kBefore = 8;
// Tokens of one byte each that may together be one character.
constexpr size_t kMostOfACharacter = 4;

// Bytes at the end of `text` that may begin a character of UTF-8 whose rest is to come.
size_t unfinished(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

GeneratedText::GeneratedText(data::Tokenizer tokenizer, std::span<const int32_t> prompt,
                             std::vector<std::string> stops,
                             std::span<const std::string_view> marks)
    : tokenizer_(std::move(tokenizer)), stops_(std::move(stops)) {
  const auto last = prompt.last(std::min(prompt.size(), kBefore));
  window_.assign(last.begin(), last.end());
  shown_tokens_ = window_.size();
  for (const std::string_view mark : marks) {
    if (tokenizer_.is_ids()) return;
    std::vector<int32_t> ids;
    tokenizer_.encode_text(mark, ids);
    if (ids.size() == 1 && tokenizer_.decode(ids).empty()) marks_.emplace_back(ids[0], mark);
  }
}

std::string GeneratedText::add(int32_t id) {
  if (stopped_) return {};
  for (const auto& [mark_id, name] : marks_) {
    if (id != mark_id) continue;
    hold_all();
    held_ += name;
    return release(false);
  }
  window_.push_back(id);
  const std::string before = tokenizer_.decode(std::span(window_).first(shown_tokens_));
  const std::string now = tokenizer_.decode(window_);
  const size_t fresh = window_.size() - shown_tokens_;
  // Part of a character is decoded as U+FFFD until its last byte comes.
  if (fresh < kMostOfACharacter && now.ends_with("\xEF\xBF\xBD")) return {};
  held_ += now.substr(std::min(before.size(), now.size()));
  if (!now.empty()) {  // tokens without text say nothing of what stands before
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(shown_tokens_));
    shown_tokens_ = window_.size();
  }
  return release(false);
}

void GeneratedText::hold_all() {
  const std::string before = tokenizer_.decode(std::span(window_).first(shown_tokens_));
  const std::string now = tokenizer_.decode(window_);
  held_ += now.substr(std::min(before.size(), now.size()));
  shown_tokens_ = window_.size();
}

std::string GeneratedText::finish() {
  if (stopped_) return {};
  hold_all();
  return release(true);
}

std::string GeneratedText::release(bool all) {
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(end);
    return std::exchange(held_, {});
  }
  size_t keep = all ? 0 : unfinished(held_);
  for (const std::string& stop : stops_) {
    for (size_t n = all ? 0 : std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (!std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) continue;
      keep = n;
      break;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

}  // namespace saturate::serve
