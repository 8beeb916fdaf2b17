// SPDX-License-Identifier: Apache-2.0
// Which texts a run was given, so that one that is resumed goes on with the same.
#pragma once
#include <string>
#include <vector>

#include "base/config.h"
#include "base/json.h"

namespace saturate::train {

// Size of a file and a hash of 64 KiB at its beginning, middle and end: enough to tell texts apart
// at no cost, not that two are equal. "a pipe" for what can be read only once.
std::string fingerprint_of_file(const std::string& path);

// What decides which sentences the next steps take, and what the best score stands for.
struct TextIdentity {
  std::vector<std::string> train, valid;  // a fingerprint for each file, in their order
  std::string metric;                     // validate.metric
  friend bool operator==(const TextIdentity&, const TextIdentity&) = default;
};

// Of the files that `config` names; of the run's own copy (copy_of_text) where one can be read only
// once or is gone.
TextIdentity text_identity(const RunConfig& config);

Json to_json(const TextIdentity& texts);
// Of a checkpoint's state; empty lists for one that earlier versions wrote. Errors: invalid_argument.
TextIdentity text_identity_from(const Json& state, const std::string& path);

// Refuses to take up a position in another text: the run would pass over sentences and repeat
// others without a word. Errors: invalid_argument with the file, both fingerprints and the remedy.
void check_same_text(const TextIdentity& before, const TextIdentity& now, const RunConfig& config);

// Whether scores of the two can be compared.
bool judges_alike(const TextIdentity& before, const TextIdentity& now);

}  // namespace saturate::train
