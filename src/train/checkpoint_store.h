// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run folder: whole or not there, checksummed, the last few and the best model kept.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/together.h"

namespace saturate::train {

struct Checkpoint {
  int64_t step = 0;
  std::string folder;
};

/// <run>/checkpoints/step-00001200/ holds any files and manifest.json with the size and XXH3 of
/// each. One process writes (RunLock); any number may read. Not thread safe.
///
///   checkpoints/latest    name of the newest folder, replaced atomically; for people and scripts
///   checkpoints/best-00001000/   the model alone of a step that was the best, with manifest.json
///   checkpoints/best      name of the one that is the best now
class CheckpointStore {
 public:
  explicit CheckpointStore(std::string run_folder);

  // Removes what a killed writer left behind. Call once, holding the RunLock. Errors: io.
  void remove_leftovers();

  // `write` fills an empty folder; then every file in it is synced and listed, the folder renamed
  // into place, the parent synced. A checkpoint of the same step is replaced. Returns the folder.
  // bytes_needed is compared with the free space before anything is written; 0: not known.
  // Errors: io with the bytes needed and free, and whatever `write` throws; the earlier checkpoints
  // are intact then and nothing of the new one remains.
  // Collective over `ranks` that share the folder, each with its own store of it; see
  // write_whole_folder().
  std::string save(int64_t step, uint64_t bytes_needed,
                   const std::function<void(const std::string& folder)>& write,
                   const Together& ranks = {});

  std::vector<Checkpoint> list() const;  // oldest first; not verified

  // Why a checkpoint cannot be used ("model.safetensors is cut short: ..."); nothing when it is
  // whole. Reads every byte.
  static std::optional<std::string> damage(const std::string& folder);

  // The newest whole checkpoint; nothing when there is none. Each damaged newer one is reported to
  // `problems` as "folder: reason".
  // Collective over `ranks`, which share the reading and get one answer.
  std::optional<Checkpoint> newest_valid(std::vector<std::string>& problems,
                                         const Together& ranks = {}) const;
  // The folder of a checkpoint, if it is there; not verified.
  std::optional<std::string> folder_of(int64_t step) const;

  // A resumed run goes on from `step`: checkpoints of later steps, damaged ones all of them, get
  // the name damaged-step-... and count no more as the newest that prune() keeps. Errors: io.
  void set_aside_after(int64_t step);

  // Keeps the model that `write` fills in, of a step that is the best now. Errors: as save().
  void keep_model(int64_t step, const std::function<void(const std::string& folder)>& write);
  // A whole folder with the model of `step`: the kept one, else the checkpoint of that step.
  std::optional<Checkpoint> whole_model(int64_t step) const;
  // The folder that `best` names; not verified.
  std::optional<Checkpoint> best() const;
  // `best` names the kept model of `step`, or is gone with it. Errors: io.
  void restore_best(int64_t step);
  // Removes the kept models of all other steps. Errors: io.
  void prune_models(const std::vector<int64_t>& keep);

  // Removes all checkpoints but the newest `keep_last` (at least 1). Errors: io.
  void prune(int64_t keep_last);

 private:
  std::string path(const std::string& name) const;
  std::vector<Checkpoint> folders(std::string_view kind) const;
  void remove(const std::string& name);

  std::string root_;  // <run>/checkpoints
};

}  // namespace saturate::train
