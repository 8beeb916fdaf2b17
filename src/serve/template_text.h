// SPDX-License-Identifier: Apache-2.0
// What the text of a folder's chat template says beside the kind that it is of. It is a program (Jinja), of which only
// texts between quotes are read.
#pragma once
#include <string>
#include <string_view>

#include "serve/chat_template.h"

namespace saturate::serve {

// The system message that it gives a chat without one: a text between quotes that is a whole turn of `system`; empty:
// it gives none.
std::string default_system_of(std::string_view jinja, const ChatTemplate::Turn& system);

// How it opens an answer of a model that reasons, and what it keeps of earlier reasoning.
ChatThinking thinking_of(std::string_view jinja);

// An answer without what was thought before it, and that.
struct ThoughtAnswer {
  std::string_view content, thought;
};
ThoughtAnswer without_thought(std::string_view answer);

}  // namespace saturate::serve
