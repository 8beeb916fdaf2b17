// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "observe/read/nsys.h"

namespace saturate::observe {

Trace read_nsys(const std::string& path) {
  throw Error(Errc::unsupported, "doctor",
              path +
                  ": an SQLite file, and this build has no SQLite; install libsqlite3-dev and "
                  "build again");
}

}  // namespace saturate::observe
