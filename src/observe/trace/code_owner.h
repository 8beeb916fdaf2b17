// SPDX-License-Identifier: Apache-2.0
// Whose code a frame of a stack is, by the file that it lies in.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace saturate::observe {

enum class CodeOwner : uint8_t { program, library, framework, python };
// By where the file lies: site-packages, a framework's folder there, Python's own library.
CodeOwner owner_of(const std::string& file);

// The path below the folder of installed packages, "torch/nn/modules/linear.py"; empty elsewhere.
std::string_view path_in_packages(std::string_view file);

// Whether a frame is native code's: its file is a library, or "[...]" where there is none. The
// program itself is not told from Python's files by its name, and needs not: below Python lie
// libraries.
bool is_native_file(const std::string& file);

}  // namespace saturate::observe
