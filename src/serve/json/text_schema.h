// SPDX-License-Identifier: Apache-2.0
// Texts that are no JSON, as schemas that JsonAutomaton reads (JsonSchema::is_text).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "serve/json/schema.h"

namespace saturate::serve {

// One of `texts`, of which there is one at least, each as it is.
JsonSchema text_of_choices(std::vector<std::string> texts);

// A text that the whole of `pattern` matches. Errors: those of compile_text_pattern.
JsonSchema text_of_pattern(std::string_view pattern, const std::string& where);

}  // namespace saturate::serve
