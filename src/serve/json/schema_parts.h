// SPDX-License-Identifier: Apache-2.0
// What schemas say together: one with the keywords of several (allOf, keywords beside $ref and anyOf), and whether
// two can hold of one value (oneOf).
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/json/pattern.h"

namespace saturate::serve {

// Keywords that say nothing of values.
bool only_describes(std::string_view keyword);

class SchemaParts {
 public:
  // `whole`: the schema that references lead into. Both outlive this.
  SchemaParts(const Json& whole, PatternBudget& budget) : whole_(whole), budget_(budget) {}

  // Errors: invalid_argument where it leads elsewhere or to nothing.
  const Json& resolve(const Json& reference, const std::string& where) const;

  // Errors: invalid_argument for a schema within the whole that has an "$id" and references, which then lead into it
  // and not into the whole.
  void require_no_base(const Json& schema, const std::string& where) const;

  // Whether the schema is one of several parts that must be made one before it says what a value is.
  static bool has_parts(const Json& schema);
  // A schema that allows what all parts of `schema` allow, without such parts: an anyOf alone, or keywords of values;
  // false where no value meets all. Errors: invalid_argument where two parts say what cannot be said at once.
  Json joined(const Json& schema, const std::string& where);

  // Whether no value meets both; false where that is not plain.
  bool excludes(const Json& a, const Json& b);
  // The schemas of anyOf or oneOf. Errors: invalid_argument where they are no list, or those of a oneOf are not
  // known to exclude one another.
  const Json::Array& alternatives(const Json& schema, const char* word, const std::string& where);

 private:
  void flatten(const Json& schema, const std::string& where, int depth,
               std::vector<const Json*>& parts);
  bool join(Json& to, const Json& from, const std::string& where);
  bool join_keyword(Json& to, const std::string& key, const Json& value, const std::string& where);
  void join_members(Json& to, const Json& from, const std::string& where);
  void parts_of(const Json& schema, int depth, std::vector<const Json*>& parts) const;
  bool excludes(const Json& a, const Json& b, int depth);
  bool differ(const Json& x, const Json& y, unsigned types,
              const std::vector<std::string>& required, int depth);
  unsigned types_of(const Json& schema) const;
  void work(size_t steps, const std::string& where);

  const Json& whole_;
  PatternBudget& budget_;
};

}  // namespace saturate::serve
