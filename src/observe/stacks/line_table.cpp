// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/line_table.h"

#include <cstddef>

namespace saturate::observe {
namespace {

class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  bool done() const { return at_ >= bytes_.size(); }
  int next() { return done() ? 0 : static_cast<uint8_t>(bytes_[at_++]); }
  int next_signed() { return static_cast<int8_t>(next()); }
  // Six bits a byte, the lowest first; bit 6 says that more follow.
  int next_varint() {
    unsigned value = 0;
    for (unsigned shift = 0;; shift += 6) {
      const auto byte = static_cast<unsigned>(next());
      if (shift < 30) value |= (byte & 63) << shift;
      if ((byte & 64) == 0) return static_cast<int>(value);
    }
  }
  int next_signed_varint() {
    const int value = next_varint();
    return (value & 1) != 0 ? -(value >> 1) : value >> 1;
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

SourcePlace in_lnotab(Bytes table, int line, int instruction) {
  for (int address = 0; !table.done();) {
    address += table.next();
    if (address > instruction) break;
    line += table.next_signed();
  }
  return {line, line};
}

SourcePlace in_ranges(Bytes table, int line, int instruction) {
  for (int address = 0; !table.done();) {
    address += table.next();
    const int step = table.next_signed();
    const bool none = step == -128;
    if (!none) line += step;
    if (address > instruction) return none ? SourcePlace{} : SourcePlace{line, line};
  }
  return {};
}

SourcePlace in_locations(Bytes table, int64_t line, int instruction) {
  for (int address = 0; !table.done();) {
    const int head = table.next();
    const int code = head >> 3 & 15;
    address += 2 * ((head & 7) + 1);
    SourcePlace p;
    if (code == 15) {  // no place at all
      if (address > instruction) return {};
      continue;
    }
    if (code == 14) {
      line += table.next_signed_varint();
      p.end_line = static_cast<int>(line + table.next_varint());
      p.column = table.next_varint() - 1;
      p.end_column = table.next_varint() - 1;
    } else if (code == 13) {
      line += table.next_signed_varint();
      p.end_line = static_cast<int>(line);
    } else if (code >= 10) {
      line += code - 10;
      p.end_line = static_cast<int>(line);
      p.column = table.next();
      p.end_column = table.next();
    } else {
      const int columns = table.next();
      p.end_line = static_cast<int>(line);
      p.column = code * 8 + (columns >> 4);
      p.end_column = p.column + (columns & 15);
    }
    p.line = static_cast<int>(line);
    if (address > instruction) return p;
  }
  return {};
}

}  // namespace

SourcePlace place_of(int minor, std::string_view table, int first_line, int instruction) {
  const Bytes bytes(table);
  if (minor >= 11) return in_locations(bytes, first_line, instruction);
  return minor == 10 ? in_ranges(bytes, first_line, instruction)
                     : in_lnotab(bytes, first_line, instruction);
}

}  // namespace saturate::observe
