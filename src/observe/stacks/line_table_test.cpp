// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/line_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/testing/temp_folder.h"
#include "observe/testing/pythons.h"

namespace saturate::observe {
namespace {

using saturate::testing::Interpreter;
using saturate::testing::TempFolder;

// Every function of the module, with what its own interpreter says of each instruction:
// "C <first line> <table in hex>", then "I <offset> <line> <end line> <column> <end column>".
constexpr const char* kTell = R"(
import dis, sys, types
source = open(sys.argv[1]).read()
def tell(code):
    new = sys.version_info >= (3, 10)
    print("C", code.co_firstlineno, (code.co_linetable if new else code.co_lnotab).hex() or "-")
    if sys.version_info >= (3, 11):
        for i, p in enumerate(code.co_positions()):
            print("I", 2 * i, *[-1 if v is None else v for v in (p[0], p[1], p[2], p[3])])
    else:
        starts = list(code.co_lines()) if new else [
            (a, b, l) for (a, l), b in zip(list(dis.findlinestarts(code)),
                [a for a, _ in list(dis.findlinestarts(code))[1:]] + [len(code.co_code)])]
        for start, end, line in starts:
            for at in range(start, end, 2):
                print("I", at, line or -1, line or -1, -1, -1)
    for c in code.co_consts:
        if isinstance(c, types.CodeType): tell(c)
tell(compile(source, "x.py", "exec"))
)";

constexpr const char* kSource = R"(import os
def f(a,
      b):
    with open(os.devnull) as file:
        for x in file:
            try:
                a = [y for y in (x, a) if y] + (a or
                     b)
            except (ValueError,
                    KeyError) as e:
                raise



            finally:
                b = lambda q: q ** 2 if q else (yield)
    return {k: v
            for k, v in a.items()}
class C:
    x: int = 1
    async def g(self):
        async with self as y:
            return await y
)";

std::string unhex(const std::string& text) {
  std::string bytes;
  if (text == "-") return bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

void compare(const Interpreter& python, const std::string& source, int least) {
  const std::string told = testing::output_of(python.path + " " + source + ".tell " + source);
  std::istringstream in(told);
  std::string table;
  int first = 0, instructions = 0;
  for (std::string kind; in >> kind;) {
    if (kind == "C") {
      std::string hex;
      in >> first >> hex;
      table = unhex(hex);
      continue;
    }
    int at = 0, line = 0;
    SourcePlace want;
    in >> at >> line >> want.end_line >> want.column >> want.end_column;
    want.line = std::max(0, line);
    want.end_line = std::max(0, want.end_line);
    ++instructions;
    const SourcePlace got = place_of(python.minor, table, first, at);
    ASSERT_EQ(got.line, want.line) << python.path << " at " << at << " of line " << first;
    ASSERT_EQ(got, want) << python.path << " at " << at << " of line " << first;
  }
  EXPECT_GT(instructions, least) << python.path << ": " << told.substr(0, 200);
}

TEST(LineTable, IsReadAsItsOwnInterpreterReadsIt) {
  TempFolder folder;
  const std::vector<Interpreter> pythons = testing::interpreters();
  if (pythons.empty()) GTEST_SKIP() << "no Python 3.9 to 3.15 on this machine";
  std::ofstream(folder / "x.py") << kSource;
  std::ofstream(folder / "x.py.tell") << kTell;
  for (const Interpreter& python : pythons) {
    compare(python, folder / "x.py", 100);
    // Long functions, long lines and far jumps, in a library of many authors.
    const std::string library = testing::output_of(
        python.path + " -c 'import textwrap; print(textwrap.__file__, end=\"\")'");
    std::filesystem::copy_file(library, folder / "textwrap.py",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy_file(folder / "x.py.tell", folder / "textwrap.py.tell",
                               std::filesystem::copy_options::overwrite_existing);
    compare(python, folder / "textwrap.py", 500);
  }
}

TEST(LineTable, ByHand) {
  using namespace std::string_view_literals;
  EXPECT_EQ(place_of(9, "\x04\x01\x06\xFF"sv, 10, 3).line, 10);
  EXPECT_EQ(place_of(9, "\x04\x01\x06\xFF"sv, 10, 4).line, 11);
  EXPECT_EQ(place_of(9, "\x04\x01\x06\xFF"sv, 10, 100).line, 10);
  EXPECT_EQ(place_of(10, "\x04\x01\x02\x80\x06\x02"sv, 10, 4).line, 0);
  EXPECT_EQ(place_of(10, "\x04\x01\x02\x80\x06\x02"sv, 10, 6).line, 13);
  // One line on, columns 4 to 9; then no place; then two lines back, without columns.
  const std::string_view table = "\xD9\x04\x09\xF8\xEA\x05"sv;
  EXPECT_EQ(place_of(12, table, 10, 2), (SourcePlace{11, 11, 4, 9}));
  EXPECT_EQ(place_of(12, table, 10, 4), SourcePlace{});
  EXPECT_EQ(place_of(12, table, 10, 10), (SourcePlace{9, 9, -1, -1}));
  EXPECT_EQ(place_of(12, table, 10, 99), SourcePlace{});
}

// Tables that were torn while they were read.
TEST(LineTable, AnyBytesAreRead) {
  std::string bytes;
  uint32_t state = 7;
  for (int n = 0; n < 300; ++n) {
    bytes += static_cast<char>(state >> 24);
    state = state * 1664525 + 1013904223;
    for (int minor = 9; minor <= 14; ++minor) place_of(minor, bytes, 1, n);
    place_of(11, std::string(static_cast<size_t>(n), '\xFF'), 1, 1 << 20);
  }
}

}  // namespace
}  // namespace saturate::observe
