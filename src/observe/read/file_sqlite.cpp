// SPDX-License-Identifier: Apache-2.0
#include "observe/read/file_sqlite.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>

#include "base/error.h"

namespace saturate::observe {
namespace {

sqlite3* handle(void* db) { return static_cast<sqlite3*>(db); }
sqlite3_stmt* handle_of(void* statement) { return static_cast<sqlite3_stmt*>(statement); }

}  // namespace

SqliteFile::SqliteFile(const std::string& path) : path_(path) {
  sqlite3* db = nullptr;
  const int rc =
      sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, nullptr);
  db_ = db;
  if (rc != SQLITE_OK) {
    const std::string problem = db != nullptr ? sqlite3_errmsg(db) : "out of memory";
    sqlite3_close(db);
    throw Error(Errc::io, "doctor",
                fmt::format("{}: {}; check the path and its permissions", path, problem));
  }
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, 16 << 20);
  sqlite3_exec(db, "PRAGMA cell_size_check=ON; PRAGMA mmap_size=0;", nullptr, nullptr, nullptr);
}

SqliteFile::~SqliteFile() { sqlite3_close(handle(db_)); }

void SqliteFile::fail(const std::string& where, const std::string& problem) const {
  throw Error(
      Errc::invalid_argument, "doctor",
      fmt::format("{}: {}: {}; the file is damaged or no export of Nsight Systems, export it again "
                  "(nsys export --type sqlite)",
                  path_, where, problem));
}

bool SqliteFile::has_table(const std::string& table) const {
  sqlite3_stmt* s = nullptr;
  if (sqlite3_prepare_v2(handle(db_), "SELECT 1 FROM sqlite_master WHERE type='table' AND name=?",
                         -1, &s, nullptr) != SQLITE_OK)
    fail("list of tables", sqlite3_errmsg(handle(db_)));
  sqlite3_bind_text(s, 1, table.c_str(), -1, SQLITE_TRANSIENT);
  const int rc = sqlite3_step(s);
  const std::string problem = sqlite3_errmsg(handle(db_));
  sqlite3_finalize(s);
  if (rc != SQLITE_ROW && rc != SQLITE_DONE) fail("list of tables", problem);
  return rc == SQLITE_ROW;
}

SqliteFile::Rows::Rows(SqliteFile& file, std::string table, const std::vector<std::string>& columns)
    : file_(file), table_(std::move(table)) {
  std::vector<std::string> present;
  sqlite3_stmt* info = nullptr;
  if (sqlite3_prepare_v2(handle(file.db_), fmt::format("PRAGMA table_info(\"{}\")", table_).c_str(),
                         -1, &info, nullptr) == SQLITE_OK) {
    while (sqlite3_step(info) == SQLITE_ROW) {
      const auto* name = reinterpret_cast<const char*>(sqlite3_column_text(info, 1));
      if (name != nullptr) present.emplace_back(name);
    }
  }
  sqlite3_finalize(info);
  std::string sql = "SELECT ";
  for (size_t i = 0; i < columns.size(); ++i) {
    const bool there = std::find(present.begin(), present.end(), columns[i]) != present.end();
    sql += fmt::format("{}{}", i > 0 ? ", " : "", there ? "\"" + columns[i] + "\"" : "NULL");
  }
  sql += fmt::format(" FROM \"{}\"", table_);
  sqlite3_stmt* s = nullptr;
  if (sqlite3_prepare_v2(handle(file.db_), sql.c_str(), -1, &s, nullptr) != SQLITE_OK)
    file.fail("table " + table_, sqlite3_errmsg(handle(file.db_)));
  statement_ = s;
}

SqliteFile::Rows::~Rows() { sqlite3_finalize(handle_of(statement_)); }

bool SqliteFile::Rows::next() {
  const int rc = sqlite3_step(handle_of(statement_));
  if (rc == SQLITE_DONE) return false;
  if (rc != SQLITE_ROW)
    file_.fail(fmt::format("table {}, after row {}", table_, row_),
               sqlite3_errmsg(handle(file_.db_)));
  ++row_;
  return true;
}

bool SqliteFile::Rows::empty(int column) const {
  return sqlite3_column_type(handle_of(statement_), column) == SQLITE_NULL;
}

int64_t SqliteFile::Rows::integer(int column, int64_t otherwise) const {
  switch (sqlite3_column_type(handle_of(statement_), column)) {
    case SQLITE_NULL:
      return otherwise;
    case SQLITE_INTEGER:
      return sqlite3_column_int64(handle_of(statement_), column);
    default:
      file_.fail(fmt::format("table {}, row {}", table_, row_),
                 fmt::format("column {} is no integer",
                             sqlite3_column_name(handle_of(statement_), column)));
  }
}

std::string_view SqliteFile::Rows::text(int column) const {
  const auto* text = sqlite3_column_text(handle_of(statement_), column);
  if (text == nullptr) return {};
  return {reinterpret_cast<const char*>(text),
          static_cast<size_t>(sqlite3_column_bytes(handle_of(statement_), column))};
}

}  // namespace saturate::observe
