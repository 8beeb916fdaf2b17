// SPDX-License-Identifier: Apache-2.0
// Reader and corpus on arbitrary bytes: lines or an Error, nothing else. The first byte picks the
// format, the rest is the file. Seeds: tests/fuzz/corpus.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "data/corpus.h"
#include "base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace saturate;
  if (size < 1) return 0;
  const int fd = memfd_create("corpus", 0);
  if (fd < 0 || ::write(fd, bytes + 1, size - 1) != static_cast<ssize_t>(size - 1)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  data::CorpusSpec spec;
  spec.format = static_cast<data::CorpusFormat>(bytes[0] % 5);
  spec.paths.assign(spec.format == data::CorpusFormat::parallel ? 2 : 1, path);
  spec.max_line_bytes = 4096;
  if ((bytes[0] & 0x80) != 0) spec.source_key.clear();
  spec.skip_bad_lines = (bytes[0] & 0x40) != 0;
  try {
    const auto corpus = data::open_corpus(spec);
    data::SentencePair pair;
    while (corpus->next(pair))
      if (saturate::find_invalid_utf8(pair.source + pair.target) != std::string::npos) std::abort();
  } catch (const Error&) {
    // The expected answer to most inputs.
  }
  ::close(fd);
  return 0;
}
