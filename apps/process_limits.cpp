// SPDX-License-Identifier: Apache-2.0
#include "apps/process_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "apps/commands.h"
#include "base/error.h"

namespace saturate::apps {

// Without room for its calls a process ends by SIGSEGV. Training needs 128 KiB (measured on x86-64,
// glibc 2.36); threads get as much as this limit says.
void require_stack() {
  constexpr rlim_t kLeast = rlim_t{512} << 10;
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeast) return;
  throw Error(Errc::out_of_memory, "main",
              fmt::format("the limit of the stack is {} KiB and {} are needed; raise it (ulimit -s "
                          "8192)",
                          stack.rlim_cur >> 10, kLeast >> 10));
}

// A command opens a dozen files at most, with several processes or a GPU some dozens more. What
// asks for one too many says so at many places and not always by its name, so the limit is seen to
// here.
void require_open_files() {
  constexpr rlim_t kLeast = 64;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= kLeast) return;
  const rlim_t given = files.rlim_cur;
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 1024);
  if (files.rlim_cur >= kLeast && setrlimit(RLIMIT_NOFILE, &files) == 0) return;
  throw Error(Errc::io, "main",
              fmt::format("the limit of open files is {} and {} are needed; raise it (ulimit -n "
                          "1024)",
                          given, kLeast));
}

// An exception that left a thread of a library's own (SentencePiece trains with some): reported like any
// other, where the default would be SIGABRT. Without memory nothing can be put together.
[[noreturn]] void tell_and_end() {
  const std::exception_ptr thrown = std::current_exception();
  if (!thrown) std::abort();  // our bug
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "saturate: %s\n", kOutOfMemory);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "saturate: [main] %s\n", e.what());
  } catch (...) {
    std::fputs("saturate: [main] a library failed without a reason\n", stderr);
  }
  _exit(kExitMachine);
}

}  // namespace saturate::apps
