// SPDX-License-Identifier: Apache-2.0
// "response_format" of completions and chats: what an answer is held to.
#pragma once
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "serve/json/json_constraint.h"
#include "train/translation.h"

namespace saturate::serve {

struct ResponseFormat {
  std::string name;  // equal ones are the same format
  JsonSchema schema;
  std::string field = "response_format";  // of the request, that asks for it
};

// Of {"type": "json_object"}, an object of any members or with "schema" a value of that, and {"type": "json_schema",
// "json_schema": {"name", "schema", "strict"}}; none of {"type": "text"}. Errors: FieldError of response_format, with the place in it.
std::unique_ptr<ResponseFormat> parse_response_format(const Json& value);

/// The constraints of one model, those asked for last. From one thread; the model's engine may use them from its
/// own meanwhile.
class ResponseFormats {
 public:
  // The model's tokens are read with the first constraint: some tenths of a second for 150,000. `model` outlives
  // this.
  explicit ResponseFormats(const train::LoadedModel& model) : model_(model) {}

  // Errors: those of JsonConstraint.
  std::shared_ptr<JsonConstraint> constraint(const ResponseFormat& format);
  // To a value of `format`, or behind `mark` one of `call`; `mark` as models write it before a call, perhaps a
  // special token of theirs, or "". Errors: those of JsonConstraint.
  std::shared_ptr<model::TokenConstraint> value_or_call(const ResponseFormat& format,
                                                        const ResponseFormat& call,
                                                        std::string_view mark);

 private:
  const train::LoadedModel& model_;
  std::shared_ptr<const TokenBytes> tokens_;
  std::list<std::pair<std::string, std::shared_ptr<JsonConstraint>>> kept_;  // the last first
};

}  // namespace saturate::serve
