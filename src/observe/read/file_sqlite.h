// SPDX-License-Identifier: Apache-2.0
// The only door to SQLite: reads tables of a file that nobody vouches for.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::observe {

class SqliteFile {
 public:
  // Read-only, without locks, triggers, views or functions from the schema.
  explicit SqliteFile(const std::string& path);
  ~SqliteFile();
  SqliteFile(const SqliteFile&) = delete;
  SqliteFile& operator=(const SqliteFile&) = delete;

  bool has_table(const std::string& table) const;

  // Rows of a table. Columns the table lacks read as empty.
  class Rows {
   public:
    Rows(SqliteFile& file, std::string table, const std::vector<std::string>& columns);
    ~Rows();
    Rows(const Rows&) = delete;
    Rows& operator=(const Rows&) = delete;
    bool next();
    bool empty(int column) const;
    // `otherwise` for an empty field. Errors    Error{invalid_argument} for text or blobs.
    int64_t integer(int column, int64_t otherwise = 0) const;
    std::string_view text(int column) const;  // valid until next()

   private:
    SqliteFile& file_;
    std::string table_;
    void* statement_ = nullptr;
    int64_t row_ = 0;
  };

 private:
  friend class Rows;
  [[noreturn]] void fail(const std::string& where, const std::string& problem) const;
  std::string path_;
  void* db_ = nullptr;
};

}  // namespace saturate::observe
