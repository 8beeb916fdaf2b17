// SPDX-License-Identifier: Apache-2.0
#include "serve/json/value_or_call.h"

#include <string_view>
#include <utility>

namespace saturate::serve {

ValueOrCall::ValueOrCall(std::shared_ptr<JsonConstraint> value,
                         std::shared_ptr<JsonConstraint> call, std::string mark,
                         std::optional<int32_t> mark_id, std::shared_ptr<const TokenBytes> tokens)
    : value_(std::move(value)),
      call_(std::move(call)),
      mark_(std::move(mark)),
      mark_id_(mark_id),
      tokens_(std::move(tokens)) {
  const bool marked = !mark_.empty();
  number_of({value_->start(), marked ? 0 : -1, marked ? -1 : call_->start()});
}

int32_t ValueOrCall::number_of(State state) {
  const auto [at, fresh] = numbers_.try_emplace(state, static_cast<int32_t>(states_.size()));
  if (fresh) states_.push_back(state);
  return at->second;
}

bool ValueOrCall::allows(JsonConstraint& constraint, int32_t state, int32_t id) {
  if (state < 0) return false;
  const std::span<const uint32_t> mask = constraint.allowed(state);
  const auto word = static_cast<size_t>(id) / 32;
  return word < mask.size() && (mask[word] >> (id % 32) & 1u) != 0;
}

int32_t ValueOrCall::mark_after(int32_t mark, int32_t id) const {
  if (mark < 0) return -1;
  if (mark == 0 && id == mark_id_) return static_cast<int32_t>(mark_.size());
  const std::string& bytes = tokens_->of(id);
  if (bytes.empty()) return -1;
  if (mark == 0 && bytes.find_first_not_of(" \n\r\t") == bytes.npos) return 0;
  const bool goes_on = std::string_view(mark_).substr(static_cast<size_t>(mark)).starts_with(bytes);
  return goes_on ? mark + static_cast<int32_t>(bytes.size()) : -1;
}

int32_t ValueOrCall::next(int32_t state, int32_t id) {
  const State now = states_[static_cast<size_t>(state)];
  State then{-1, mark_after(now.mark, id), -1};
  if (allows(*value_, now.value, id)) then.value = value_->next(now.value, id);
  if (allows(*call_, now.call, id)) then.call = call_->next(now.call, id);
  if (then.mark == std::ssize(mark_)) then = {then.value, -1, call_->start()};
  return number_of(then);
}

std::span<const uint32_t> ValueOrCall::allowed(int32_t state) {
  const State now = states_[static_cast<size_t>(state)];
  if (now.mark < 0 && now.call < 0) return value_->allowed(now.value);
  if (now.mark < 0 && now.value < 0) return call_->allowed(now.call);
  mask_.assign(tokens_->words(), 0);
  const auto add = [&](std::span<const uint32_t> more) {
    for (size_t i = 0; i < mask_.size(); ++i) mask_[i] |= more[i];
  };
  if (now.value >= 0) add(value_->allowed(now.value));
  if (now.call >= 0) add(call_->allowed(now.call));
  if (now.mark < 0) return mask_;
  if (now.mark == 0 && mark_id_) allow_token(mask_, *mark_id_);
  const std::string_view rest = std::string_view(mark_).substr(static_cast<size_t>(now.mark));
  for (size_t n = 1; n <= rest.size(); ++n)
    for (const int32_t id : tokens_->those_of(rest.substr(0, n))) allow_token(mask_, id);
  return mask_;
}

}  // namespace saturate::serve
