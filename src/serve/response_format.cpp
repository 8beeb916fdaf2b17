// SPDX-License-Identifier: Apache-2.0
#include "serve/response_format.h"

#include <algorithm>

#include "base/error.h"
#include "serve/json/value_or_call.h"
#include "serve/request_error.h"

namespace saturate::serve {
namespace {

constexpr const char* kField = "response_format";
constexpr size_t kMostKept = 8;  // of up to 16 MiB of masks each

}  // namespace

std::unique_ptr<ResponseFormat> parse_response_format(const Json& value) {
  const auto compiled = [](const Json& schema, const std::string& where) {
    return std::make_unique<ResponseFormat>(
        ResponseFormat{.name = schema.dump(), .schema = compile_json_schema(schema, where)});
  };
  try {
    JsonFields fields(value, "request", kField);
    constexpr std::string_view kTypes[] = {"text", "json_object", "json_schema"};
    const size_t type = fields.choice("type", kTypes);
    std::unique_ptr<ResponseFormat> format;
    if (type == 1) {
      // With a schema as llama.cpp's server and others have it.
      const bool any = !fields.has("schema");
      if (!any && value["schema"].if_object() == nullptr)
        fields.fail("schema", "it must be a JSON Schema, an object");
      format = compiled(any ? Json{{"type", "object"}} : value["schema"],
                        any ? kField : std::string(kField) + ".schema");
    }
    if (type == 2) {
      if (!fields.has("json_schema")) fields.fail("json_schema", "give {\"name\", \"schema\"}");
      const std::string where = std::string(kField) + ".json_schema";
      JsonFields parts(value["json_schema"], "request", where);
      static_cast<void>(parts.text_or("name", ""));  // llama.cpp's clients leave it out
      static_cast<void>(parts.text_or("description", ""));
      // Either way the answer is held to the schema.
      static_cast<void>(parts.boolean_or("strict", false));
      if (!parts.has("schema")) parts.fail("schema", "give a JSON Schema");
      parts.reject_others();
      format = compiled(value["json_schema"]["schema"], where + ".schema");
    }
    fields.reject_others();
    return format;
  } catch (const Error& e) {
    throw FieldError("request", message_of(e.what()), kField);
  }
}

std::shared_ptr<JsonConstraint> ResponseFormats::constraint(const ResponseFormat& format) {
  if (!tokens_)
    tokens_ =
        std::make_shared<const TokenBytes>(token_bytes(model_.tokenizers.target, model_.config));
  const auto at = std::ranges::find(kept_, format.name, &decltype(kept_)::value_type::first);
  if (at != kept_.end() && !at->second->is_large()) {
    kept_.splice(kept_.begin(), kept_, at);
    return at->second;
  }
  if (at != kept_.end()) kept_.erase(at);
  kept_.emplace_front(format.name, std::make_shared<JsonConstraint>(format.schema, tokens_,
                                                                    ends_of(model_.config)));
  if (kept_.size() > kMostKept) kept_.pop_back();
  return kept_.front().second;
}

std::shared_ptr<model::TokenConstraint> ResponseFormats::value_or_call(const ResponseFormat& format,
                                                                       const ResponseFormat& call,
                                                                       std::string_view mark) {
  std::shared_ptr<JsonConstraint> value = constraint(format), called = constraint(call);
  std::vector<int32_t> ids;
  const data::Tokenizer& tokenizer = model_.tokenizers.target;
  if (!mark.empty() && !tokenizer.is_ids()) tokenizer.encode_text(mark, ids);
  return std::make_shared<ValueOrCall>(std::move(value), std::move(called), std::string(mark),
                                       ids.size() == 1 ? std::optional(ids[0]) : std::nullopt,
                                       tokens_);
}

}  // namespace saturate::serve
