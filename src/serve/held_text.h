// SPDX-License-Identifier: Apache-2.0
// Fields of vLLM, SGLang and llama.cpp's server that say what an answer is held to, beside OpenAI's response_format.
#pragma once
#include <memory>

#include "base/json.h"
#include "serve/response_format.h"

namespace saturate::serve {

// Of structured_outputs (vLLM), guided_json, guided_regex and guided_choice (vLLM before 0.12), regex (SGLang) and
// json_schema (SGLang, llama.cpp); none where none is given. `fields` are those of `body`.
//
// Errors: FieldError of the field, with the place in it: for two of them, for one that cannot be held to, for grammars
// (grammar, ebnf, guided_grammar, structural_tag).
std::unique_ptr<ResponseFormat> parse_held_text(JsonFields& fields, const Json& body);

}  // namespace saturate::serve
