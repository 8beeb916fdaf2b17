// SPDX-License-Identifier: Apache-2.0
// A model's matrices as products on the CPU read them, in a file that later starts map in place of reading and packing
// them.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/gemm/packed/packed_linear.h"
#include "model/model_config.h"
#include "ops/parameters.h"

namespace saturate::model {

// What panels depend on beside their type and this program's version.
struct PanelSource {
  std::string files;    // device, number, size and times of each that lies directly in the folder
  std::string mapping;  // which rows of which tensors make each parameter, and how
  bool operator==(const PanelSource&) const = default;
};
// Waits until the folder's files were left alone for two seconds: what is newer might change unseen. Errors: io, where that
// takes more than three; those of tensor_mapping_of().
PanelSource settled_source(const std::string& folder, const ModelConfig& config);

/// The panels of a folder's weights in one type. They lie in user_cache_folder()/panels, in a file that is only ever put in
/// its place whole and never written again: what is mapped stays as it is, whatever becomes of the folder or of the file's
/// name. Immutable; any thread.
class PanelFile {
 public:
  // Null where none was kept, or it is another user's, others may write to it, it is of other files than lie in the folder
  // now, of another version of this program, or damaged; SATURATE_VERBOSE=load says which. All of its bytes are read at the
  // first opening alone (model/checked_folders.h). Errors: those of tensor_mapping_of().
  static std::shared_ptr<const PanelFile> open(const std::string& folder, const ModelConfig& config,
                                               kernels::PackedType type);
  ~PanelFile();
  PanelFile(const PanelFile&) = delete;
  PanelFile& operator=(const PanelFile&) = delete;

  // Whether the folder's files are still those: asked again when what is not in panels has been read.
  bool is_current() const;
  // Of a parameter of this shape; null: it has none.
  const char* find(const std::string& name, int64_t n, int64_t k) const noexcept;
  size_t bytes() const noexcept { return bytes_; }

 private:
  struct Panels {
    int64_t n = 0, k = 0;
    const char* data = nullptr;
  };
  PanelFile() = default;
  std::string why_not(int fd, const std::string& path, kernels::PackedType type,
                      const ModelConfig& config);
  std::string take_panels(std::string_view head, kernels::PackedType type, const PanelSource& now,
                          size_t data_at, bool known_whole);

  std::string folder_, files_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::map<std::string, Panels> panels_;
};

struct KeptPanels {
  std::string path;
  size_t bytes = 0;
};
// Keeps the panels of a store that packs in `type` and holds the weights of this folder, whose source was `source` before they
// were read. Only its user can read the file. Errors: io, naming what could not be written, or where the folder has changed
// since; invalid_argument where there is no matrix to pack.
KeptPanels keep_panels(const std::string& folder, const ModelConfig& config,
                       kernels::PackedType type, const ParameterStore& store,
                       const PanelSource& source);
// Removes what was kept of the folder in any type, and what an interrupted keep_panels() left; returns how many bytes that
// were. Errors: io.
size_t forget_panels(const std::string& folder);

}  // namespace saturate::model
