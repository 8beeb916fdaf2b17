// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace saturate::observe {

// The functions of a 64-bit ELF file, by where in the file their code lies.
class FunctionTable {
 public:
  // Empty for files of another kind, and for those without symbols. Cost: reads the tables of symbols, about 0.2 us a function.
  explicit FunctionTable(const std::string& path);

  // The function whose code holds the byte at `offset` of the file, in the source's words without its parameters; empty where
  // no symbol covers it, as in stripped files. Cost: O(log functions).
  std::string at(uint64_t offset) const;
  bool empty() const { return functions_.empty(); }

 private:
  struct Function {
    uint64_t start = 0, end = 0;  // offsets in the file
    std::string name;
  };
  std::vector<Function> functions_;  // by start
};

// "at::native::add<...>" of "_ZN2at6native3addIfEEvRT_": demangled, without parameters, what templates are made for left out.
std::string function_words(const std::string& symbol);

}  // namespace saturate::observe
