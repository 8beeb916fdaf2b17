// SPDX-License-Identifier: Apache-2.0
#include "apps/doctor_capture.h"

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "observe/read/open_capture.h"

namespace saturate::apps {
namespace {

constexpr uintmax_t kEmptyCapture = 64;  // bytes: no more than its head

}  // namespace

CaptureFolder::CaptureFolder(const std::string& keep) : kept_(!keep.empty()), path_(keep) {
  namespace fs = std::filesystem;
  if (kept_) {
    std::error_code error;
    made_ = fs::create_directories(path_, error);
    if (error)
      throw Error(Errc::io, "doctor",
                  keep + ": cannot be made (" + error.message() + "); give --keep another folder");
    if (!fs::is_empty(path_, error) || error)
      throw Error(Errc::invalid_argument, "doctor",
                  keep + ": is not an empty folder; give --keep a new one");
    return;
  }
  std::error_code error;
  path_ = (fs::temp_directory_path(error) / "saturate-doctor-XXXXXX").string();
  if (error) throw Error(Errc::io, "doctor", "TMPDIR names no folder; set it to one with room");
  if (mkdtemp(path_.data()) == nullptr)
    throw Error(Errc::io, "doctor",
                path_ + ": cannot make a folder for the capture; set TMPDIR to one with room");
}

CaptureFolder::~CaptureFolder() {
  std::error_code error;
  if (!kept_) std::filesystem::remove_all(path_, error);
  if (kept_ && made_) std::filesystem::remove(path_, error);  // when it stayed empty
}

bool CaptureFolder::has_records() const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error))
    if (entry.path().extension() == ".sat" && entry.path().filename() != "host.sat" &&
        entry.file_size(error) > kEmptyCapture)
      return true;
  return false;
}

std::vector<observe::RankTrace> ranks_in(const std::string& path, const std::string& name) {
  if (!std::filesystem::is_directory(path) && !path.ends_with(".sqlite")) return {};
  const std::unique_ptr<observe::Capture> capture = observe::open_capture(path);
  while (capture->read_window()) {
  }
  return observe::split_ranks(capture->trace(), name);
}

observe::Diagnosis diagnose_capture(const std::string& path, const std::string& name,
                                    const DoctorOptions& o) {
  const observe::AnalyseOptions options{.warm_up = o.warm_up, .untraced_step_ns = 1e6 * o.step_ms};
  if (std::vector<observe::RankTrace> ranks = ranks_in(path, name); !ranks.empty())
    return observe::diagnose_ranks(ranks, name, options, observe::read_counters(path));
  return observe::diagnose(*observe::open_capture(path), name, options,
                           observe::read_counters(path));
}

observe::LaunchOptions launch_options(const DoctorOptions& o, const std::string& folder) {
  observe::LaunchOptions l;
  l.command = o.command;
  l.folder = folder;
  l.library = o.library;
  l.cupti = o.cupti;
  l.delay_s = o.delay_s;
  l.duration_s = o.duration_s;
  l.memory = o.memory;
  l.graph_nodes = o.graph_nodes;
  return l;
}

void check_captured(const observe::LaunchResult& result, const std::string& folder) {
  if (result.captured == 0 && !result.failures.empty())
    throw Error(Errc::unsupported, "doctor", "so nothing was captured");
  if (result.captured == 0 && !result.no_gpu.empty())
    throw Error(Errc::unsupported, "doctor",
                "the command started CUDA in no process and this machine shows no GPU, so there is "
                "nothing to report: " +
                    result.no_gpu);
  if (result.captured == 0)
    throw Error(Errc::invalid_argument, "doctor",
                "the command started CUDA in no process, so there is nothing to report; see that "
                "it finds a GPU (saturate check), that nothing between takes its environment away "
                "(sudo, a container), and that its user may write to " +
                    folder);
}

}  // namespace saturate::apps
