// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>

namespace saturate::observe::cupti {

// A function that loaded libraries import, and where their calls of it are to lead instead.
struct Redirection {
  const char* symbol;
  // Given what an entry holds now, what it shall hold; the same to leave it.
  void* (*replace)(void* now);
};

// The libraries that were looked through already.
struct SeenLibraries {
  unsigned long long loaded = 0, unloaded = 0;  // by the loader's count
  std::set<uintptr_t> bases;
};

// Changes the entries of the import tables of all loaded libraries but this one, of this process's
// memory only. ELF on x86-64 and 64-bit Arm; does nothing elsewhere. Call it again for libraries
// that were loaded since: `seen` is the caller's. Not for several threads at once.
// Cost: about 1 ms for 100,000 imports of libraries not seen yet, with the loader's lock held.
void redirect_imports(const Redirection* redirections, size_t count, SeenLibraries& seen);

// Whether this machine's import tables are understood.
bool knows_imports();

// Whether the page of `at` could be made writable, and back. Of tables that are read-only once loaded.
bool make_writable(void* at, size_t bytes);
void make_read_only(void* at, size_t bytes);

}  // namespace saturate::observe::cupti
