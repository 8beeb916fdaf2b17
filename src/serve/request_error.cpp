// SPDX-License-Identifier: Apache-2.0
#include "serve/request_error.h"

#include <algorithm>

#include "base/error.h"

namespace saturate::serve {

std::string message_of(std::string_view what) {
  if (what.starts_with('[')) what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
  return std::string(what);
}

Json parse_body(std::string_view body, const JsonLimits& limits) {
  if (body.empty()) throw RequestError(400, "the body is empty; send JSON");
  try {
    return parse_json(body, "the body", limits);
  } catch (const Error& e) {
    // What is said of a file does not fit here.
    std::string_view what = e.what();
    what.remove_prefix(std::min(what.find("the body"), what.size()));
    throw RequestError(400, std::string(what.substr(0, what.find(';'))));
  }
}

void require(Admission admission, const std::string& model) {
  if (admission == Admission::full)
    throw RequestError(429, "the queue of " + model + " is full; ask again in a while");
  if (admission == Admission::broken)
    throw RequestError(503, model + " is served no more; the server's log says why");
}

}  // namespace saturate::serve
