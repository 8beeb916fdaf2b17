// SPDX-License-Identifier: Apache-2.0
// Which line an instruction of CPython came from. Each version keeps that in its own way: pairs of
// steps (3.9, co_lnotab), pairs of lengths and steps (3.10), lines and columns (from 3.11 on).
// Source: Objects/lnotab_notes.txt, Objects/codeobject.c and Objects/locations.md of CPython.
#pragma once
#include <cstdint>
#include <string_view>

namespace saturate::observe {

struct SourcePlace {
  int line = 0;  // from 1 on; 0: none, as of code that the compiler made
  int end_line = 0;
  int column = -1, end_column = -1;  // bytes of the line, half open; -1: not kept
  bool operator==(const SourcePlace&) const = default;
};

// `table` is the code object's co_lnotab (3.9) or co_linetable of Python 3.`minor`, `instruction`
// the offset in bytes into its code. Tables that end early give what they say up to there.
// Cost: O(table).
SourcePlace place_of(int minor, std::string_view table, int first_line, int instruction);

}  // namespace saturate::observe
