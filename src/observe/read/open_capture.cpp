// SPDX-License-Identifier: Apache-2.0
#include "observe/read/open_capture.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "observe/read/input.h"
#include "observe/read/kineto.h"
#include "observe/read/merge.h"
#include "observe/read/nsys.h"
#include "observe/read/sat_format.h"
#include "observe/read/sat_reader.h"

namespace saturate::observe {
namespace {

// Formats that are read as a whole.
class WholeCapture : public Capture {
 public:
  explicit WholeCapture(std::function<Trace()> read) : read_(std::move(read)) {}
  bool read_window() override {
    trace_ = read_();
    return false;
  }

 private:
  std::function<Trace()> read_;
};

}  // namespace

std::unique_ptr<Capture> make_capture(Trace trace) {
  trace.sort();
  return std::make_unique<WholeCapture>(
      [held = std::make_shared<Trace>(std::move(trace))] { return std::move(*held); });
}

std::unique_ptr<Capture> open_capture(const std::string& path) {
  std::error_code no_folder;
  if (std::filesystem::is_directory(path, no_folder)) return open_capture_folder(path);
  if (std::filesystem::is_fifo(path, no_folder) || std::filesystem::is_socket(path, no_folder))
    throw Error(Errc::invalid_argument, "doctor",
                path + ": is no file, and a trace is read more than once; write it to one first");
  std::array<char, 16> head{};
  size_t got = 0;
  {
    const auto input = open_input(path);
    while (got < head.size()) {
      const size_t n = input->read(head.data() + got, head.size() - got);
      if (n == 0) break;
      got += n;
    }
  }
  const std::string_view start(head.data(), got);
  const auto refuse = [&](const char* what) {
    throw Error(Errc::invalid_argument, "doctor", path + ": " + what);
  };
  if (start.starts_with("\177ELF") || start.starts_with("#!") || path.ends_with(".py"))
    refuse("is a program; to watch it: saturate doctor -- COMMAND");
  if (path.ends_with(".nsys-rep"))
    refuse("is for Nsight Systems alone; export it first: nsys export --type sqlite FILE");
  if (std::filesystem::path(path).filename() == "host.sat")
    refuse("holds what the launcher saw, of all processes; give its folder");
  if (got == 0)
    throw Error(Errc::invalid_argument, "doctor", path + ": is empty; record the trace again");
  if (start.starts_with(sat::kFamily)) {
    const std::filesystem::path host = std::filesystem::path(path).replace_filename("host.sat");
    std::error_code none;
    if (std::filesystem::exists(host, none) && !std::filesystem::equivalent(host, path, none))
      return open_captures({path, host.string()});
    return read_sat(open_input(path));
  }
  if (start == std::string_view("SQLite format 3\0", 16))
    return std::make_unique<WholeCapture>([path] { return read_nsys(path); });
  const size_t text = start.find_first_not_of(" \t\r\n");
  if (text != std::string_view::npos && (start[text] == '{' || start[text] == '['))
    return std::make_unique<WholeCapture>([path] { return read_kineto(*open_input(path)); });
  throw Error(
      Errc::invalid_argument, "doctor",
      path +
          ": is no trace that is known here; give a Chrome trace of torch.profiler (.json or "
          ".json.gz), an SQLite export of Nsight Systems, or what saturate doctor --keep kept");
}

}  // namespace saturate::observe
