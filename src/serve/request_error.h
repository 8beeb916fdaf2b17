// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "serve/engine.h"

namespace saturate::serve {

// What programs read of an error, as OpenAI's clients know it: "model", "model_not_found"; empty where
// there is none.
struct ErrorDetail {
  std::string param, code;
};

// A request that cannot be served as it is: the status of its answer and what to say.
struct RequestError : std::runtime_error {
  RequestError(int http_status, const std::string& message, ErrorDetail what = {})
      : std::runtime_error(message), status(http_status), detail(std::move(what)) {}
  int status;
  ErrorDetail detail;
};

// What an Error says, without the operation that it begins with.
std::string message_of(std::string_view what);

// A body as JSON. Errors: RequestError 400 with the byte, 415 for a body that is empty.
Json parse_body(std::string_view body, const JsonLimits& limits);

// Errors: RequestError 429 or 503 where the model's engine did not accept.
void require(Admission admission, const std::string& model);

}  // namespace saturate::serve
