// SPDX-License-Identifier: Apache-2.0
#include "observe/stacks/python_process.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

namespace saturate::observe {
namespace {

constexpr uint64_t kLockBytes = 208;     // of the lock's structure, in all versions
constexpr size_t kMostText = 4096;       // of a name; longer is torn
constexpr size_t kMostTable = 1 << 20;   // of a line table
constexpr size_t kMostPlaces = 200'000;  // kept: the table is then made anew
constexpr int kMostInterpreters = 16;
constexpr const char* kForbidden =
    "the kernel forbids to read its memory (kernel.yama.ptrace_scope above 1, or a container "
    "without that right)";
constexpr int kNoInstruction = INT32_MAX;  // behind all places: of the function no line is known
constexpr int kMostReads = 4;              // of a stack, where it is torn
constexpr uint8_t kFrameOfC = 3;           // owners from here on are no frames of Python

// "3.9" in ".../libpython3.9.so.1.0" or ".../python3.9"; 0: none.
int minor_in(const std::string& path) {
  const size_t at = path.rfind("python3.");
  return at == std::string::npos ? 0 : std::atoi(path.c_str() + at + 8);
}

bool task_exists(pid_t pid, pid_t thread) {
  return access(("/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread)).c_str(),
                F_OK) == 0;
}

uint64_t word_at(const char* bytes, uint32_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

// The frames of a stack. From 3.11 on a frame lies behind its caller's in memory, so what lies before
// one is read along with it. Those before lie anywhere; the addresses of a stack read before are read along.
class Frames {
 public:
  Frames(const RemoteMemory& memory, const PythonLayout& layout, uint64_t first,
         const std::vector<uint64_t>& others)
      : memory_(memory), size_(layout.frame_size), before_(layout.minor >= 11 ? kBefore : 0) {
    if (before_ > 0) return;
    known_.push_back(first);
    known_.insert(known_.end(), others.begin(),
                  others.begin() + static_cast<ptrdiff_t>(
                                       std::min(others.size(), PythonProcess::kMostFrames - 1)));
    known_bytes_.resize(known_.size() * size_);
    known_.resize(memory.read_parts(known_, size_, known_bytes_.data()));
  }

  // Null when it is not there; valid until the next call.
  const char* read(uint64_t frame) {
    if (frame > UINT64_MAX - size_) return nullptr;  // of a torn frame
    // Each frame's caller is further on in both stacks.
    if (const auto at = std::find(known_.begin() + next_, known_.end(), frame);
        at != known_.end()) {
      next_ = at - known_.begin() + 1;
      return known_bytes_.data() + static_cast<size_t>(next_ - 1) * size_;
    }
    if (frame < from_ || frame + size_ > to_) {
      to_ = frame + size_;
      from_ = frame < before_ ? frame : frame - before_;
      if (!memory_.read(from_, bytes_.data(), to_ - from_)) {
        from_ = frame;
        if (!memory_.read(from_, bytes_.data(), size_)) {
          to_ = from_ = 0;
          return nullptr;
        }
      }
    }
    return bytes_.data() + (frame - from_);
  }

 private:
  static constexpr uint64_t kBefore = 4096;
  const RemoteMemory& memory_;
  const uint64_t size_, before_;
  uint64_t from_ = 0, to_ = 0;
  std::array<char, 2 * kBefore> bytes_;
  std::vector<uint64_t> known_;
  std::vector<char> known_bytes_;
  ptrdiff_t next_ = 0;
};

void append_utf8(std::string& text, uint32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | c >> 6);
    text += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | c >> 12);
    text += static_cast<char>(0x80 | (c >> 6 & 63));
    text += static_cast<char>(0x80 | (c & 63));
  } else {
    text += static_cast<char>(0xF0 | (c >> 18 & 7));
    text += static_cast<char>(0x80 | (c >> 12 & 63));
    text += static_cast<char>(0x80 | (c >> 6 & 63));
    text += static_cast<char>(0x80 | (c & 63));
  }
}

}  // namespace

std::unique_ptr<PythonProcess> PythonProcess::attach(pid_t pid, std::string& problem) {
  constexpr std::array<std::string_view, 3> kNames = {"_PyRuntime", "Py_Version", "PyCode_Type"};
  problem.clear();
  const std::string proc = "/proc/" + std::to_string(pid);
  std::error_code none;
  const std::string program = std::filesystem::read_symlink(proc + "/exe", none).string();
  const RemoteMemory memory(pid);
  for (const MappedFile& mapped : mapped_files(pid)) {
    const bool named = mapped.path.find("python") != std::string::npos &&
                       mapped.path.rfind('/') < mapped.path.rfind("python");
    if (mapped.path != program && !named) continue;
    // Forked workers have it where their parent has.
    static std::map<std::pair<std::string, uint64_t>, std::map<std::string, uint64_t>> known;
    if (known.size() > 256) known.clear();
    auto& symbols = known[{mapped.path, mapped.start}];
    if (symbols.empty()) symbols = find_symbols(mapped.path, mapped.start, kNames);
    if (symbols.empty())  // in a container of its own
      symbols = find_symbols(proc + "/root" + mapped.path, mapped.start, kNames);
    const auto runtime = symbols.find("_PyRuntime"), type = symbols.find("PyCode_Type");
    if (runtime == symbols.end() || type == symbols.end()) continue;
    uint32_t version = 0;
    int minor = minor_in(mapped.path);
    if (const auto at = symbols.find("Py_Version"); at != symbols.end()) {
      if (!memory.read(at->second, version)) {
        problem = memory.error() == EPERM
                      ? kForbidden
                      : std::string("its memory cannot be read: ") + std::strerror(memory.error());
        return nullptr;
      }
      minor = static_cast<int>(version >> 16 & 255);
    }
    std::optional<PythonLayout> layout = python_layout(minor);
    if (minor >= 13) {
      std::array<uint64_t, kOffsetTableBytes / 8> table{};
      if (memory.read(runtime->second, table.data(), sizeof table)) layout = python_layout(table);
    }
    if (!layout) {
      problem = "its Python is 3." + std::to_string(minor) + "; 3.9 to 3.15 can be read";
      return nullptr;
    }
    auto process = std::make_unique<PythonProcess>(pid, *layout, runtime->second, type->second);
    std::vector<PythonThread> threads;
    if (process->read_threads(threads) && !threads.empty()) return process;
    if (process->error() == EPERM) problem = kForbidden;  // else it is not set up yet
    return nullptr;
  }
  return nullptr;
}

bool PythonProcess::read_threads(std::vector<PythonThread>& threads) {
  threads.clear();
  locks_.clear();
  uint64_t interpreter = 0;
  if (!memory_.read(runtime_ + layout_.interpreters, interpreter)) return false;
  std::vector<char> bytes(layout_.thread_size);
  for (int i = 0; interpreter != 0 && i < kMostInterpreters; ++i) {
    uint64_t holder = 0, lock = runtime_ + layout_.runtime_lock;
    if (layout_.runtime_lock == 0) memory_.read(interpreter + layout_.lock_pointer, lock);
    std::array<char, kLockBytes> lock_bytes;
    const auto flag = [&](uint32_t at) {
      return static_cast<int32_t>(word_at(lock_bytes.data(), at)) != 0;
    };
    // A free-threaded build has one as well, for modules that cannot do without.
    if (memory_.read(lock, lock_bytes.data(), lock_bytes.size()) &&
        (!layout_.without_lock || flag(layout_.lock_enabled))) {
      locks_.push_back(lock);
      if (flag(layout_.lock_taken)) holder = word_at(lock_bytes.data(), layout_.lock_holder);
    }
    uint64_t state = 0;
    if (!memory_.read(interpreter + layout_.threads, state)) return false;
    // A torn list may be a circle.
    for (size_t seen = 0; state != 0 && seen < kMostThreads; ++seen) {
      if (!memory_.read(state, bytes.data(), bytes.size())) break;
      PythonThread t;
      t.state = state;
      t.has_lock = state == holder;
      t.frame = word_at(bytes.data(), layout_.thread_frame);
      if (layout_.c_frames && t.frame != 0 &&
          !memory_.read(t.frame + layout_.frame_in_c_frame, t.frame))
        t.frame = 0;
      t.thread = native_thread(bytes);
      state = word_at(bytes.data(), layout_.next_thread);
      // A fork's child may still have the number of the thread it came from.
      if (t.thread != 0 && state == 0 && threads.empty() && !task_exists(pid_, t.thread))
        t.thread = pid_;
      if (t.thread != 0) threads.push_back(t);
    }
    if (!memory_.read(interpreter + layout_.next_interpreter, interpreter)) break;
  }
  return true;
}

// Up to 3.10 only the thread library's number is kept; glibc keeps the kernel's beside it.
pid_t PythonProcess::native_thread(const std::vector<char>& bytes) const {
  if (layout_.native_id != 0) return static_cast<pid_t>(word_at(bytes.data(), layout_.native_id));
#if defined(__aarch64__)
  constexpr uint64_t kThreadNumber = 208;
#else
  constexpr uint64_t kThreadNumber = 720;
#endif
  int32_t number = 0;
  memory_.read(word_at(bytes.data(), layout_.pthread) + kThreadNumber, number);
  return number;
}

bool PythonProcess::is_of_lock(uint64_t address) const {
  for (const uint64_t lock : locks_)
    if (address >= lock && address < lock + kLockBytes) return true;
  return false;
}

// As of now, if it can be read: a short function has returned since the threads were looked at.
uint64_t PythonProcess::current_frame(const PythonThread& thread) const {
  uint64_t frame = 0;
  if (thread.state == 0 || !memory_.read(thread.state + layout_.thread_frame, frame) ||
      (layout_.c_frames && frame != 0 && !memory_.read(frame + layout_.frame_in_c_frame, frame)))
    return thread.frame;
  return frame != 0 ? frame : thread.frame;
}

// `before`: addresses of frames that are likely there.
void PythonProcess::read_frames(uint64_t frame, const std::vector<uint64_t>& before) {
  frames_.clear();
  Frames frames(memory_, layout_, frame, before);
  // Torn ones may go in a circle.
  for (size_t seen = 0; frame != 0 && seen < 2 * kMostFrames && frames_.size() < kMostFrames;
       ++seen) {
    const char* bytes = frames.read(frame);
    if (bytes == nullptr) break;
    const auto owner = static_cast<uint8_t>(bytes[layout_.frame_owner]);
    const uint64_t address = std::exchange(frame, word_at(bytes, layout_.frame_caller));
    if (layout_.frame_owner != 0 && owner >= kFrameOfC) continue;
    constexpr uint64_t kMarks = 3;  // of a reference, from 3.14 on
    int32_t copy = 0;
    if (layout_.frame_copy != 0) std::memcpy(&copy, bytes + layout_.frame_copy, sizeof copy);
    frames_.push_back({address, word_at(bytes, layout_.frame_code) & ~kMarks,
                       word_at(bytes, layout_.frame_at), copy});
  }
}

uint64_t PythonProcess::Last::likely_outermost() const {
  const auto most =
      std::max_element(outermost.begin(), outermost.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == outermost.end() ? 0 : most->first;
}

void PythonProcess::Last::count(uint64_t address) {
  constexpr int kMany = 64;
  if (address == 0 || ++outermost[address] < kMany) return;
  for (auto& [_, times] : outermost) times /= 2;
  std::erase_if(outermost, [](const auto& one) { return one.second == 0; });
}

void PythonProcess::read_stack(const PythonThread& thread, std::vector<PythonPlace*>& stack) {
  stack.clear();
  if (places_ > kMostPlaces) {
    codes_.clear();
    places_ = 0;
  }
  if (last_.size() > kMostThreads) last_.clear();
  Last& last = last_[thread.state];
  const uint64_t likely = last.likely_outermost();
  bool whole = false;
  longest_.clear();
  for (int i = 0; i < kMostReads && !whole; ++i) {
    read_frames(current_frame(thread), last.frames);
    const uint64_t outermost = frames_.empty() ? 0 : frames_.back().address;
    whole = thread.state == 0 || outermost == likely;
    last.count(outermost);
    if (whole || frames_.size() > longest_.size()) longest_.swap(frames_);
  }
  if (whole || likely == 0) {
    last.frames.clear();
    for (const Frame& f : longest_) last.frames.push_back(f.address);
  }
  codes_at_.clear();
  for (const Frame& f : longest_) codes_at_.push_back(f.code);
  heads_.resize(codes_at_.size() * layout_.code_size);
  codes_at_.resize(memory_.read_parts(codes_at_, layout_.code_size, heads_.data()));
  read_copies();
  for (size_t i = 0; i < codes_at_.size(); ++i) {
    const char* head = heads_.data() + i * layout_.code_size;
    PythonPlace* p = place(codes_at_[i], head, longest_[i].at, bytecode_[i]);
    if (p == nullptr) return;
    stack.push_back(p);
  }
}

// Where the instructions begin that each frame runs.
void PythonProcess::read_copies() {
  bytecode_.clear();
  std::vector<uint64_t> entries;
  std::vector<size_t> of;
  for (size_t i = 0; i < codes_at_.size(); ++i) {
    bytecode_.push_back(codes_at_[i] + layout_.bytecode);
    if (longest_[i].copy <= 0) continue;
    // Their number, then a pointer to each; those of the code object are the first.
    const uint64_t array = word_at(heads_.data() + i * layout_.code_size, layout_.copies);
    entries.push_back(array + 8 * (1 + static_cast<uint64_t>(longest_[i].copy)));
    of.push_back(i);
  }
  if (entries.empty()) return;
  std::vector<uint64_t> starts(entries.size());
  const size_t read =
      memory_.read_parts(entries, sizeof starts[0], reinterpret_cast<char*>(starts.data()));
  for (size_t i = 0; i < of.size(); ++i) bytecode_[of[i]] = i < read ? starts[i] : 0;
}

// `head`: the start of the code object; `bytecode`: of its instructions, 0 when not known.
PythonPlace* PythonProcess::place(uint64_t code, const char* head, uint64_t at, uint64_t bytecode) {
  const auto word = [&](uint32_t offset) { return word_at(head, offset); };
  if (word(layout_.code_type) != code_type_) return nullptr;
  int32_t first_line = 0;
  std::memcpy(&first_line, head + layout_.first_line, sizeof first_line);
  const uint64_t keys[4] = {word(layout_.function), word(layout_.file), word(layout_.table),
                            static_cast<uint64_t>(first_line)};
  std::unique_ptr<Code>& known = codes_[code];
  if (known == nullptr || std::memcmp(known->keys, keys, sizeof keys) != 0) {
    if (known != nullptr) places_ -= known->places.size();
    known = std::make_unique<Code>();
    std::memcpy(known->keys, keys, sizeof keys);
    known->first_line = first_line;
    if (!read_text(keys[0], known->function) || !read_text(keys[1], known->file) ||
        !read_bytes(keys[2], known->table)) {
      codes_.erase(code);
      return nullptr;
    }
  }
  int instruction = 0;
  if (layout_.bytecode != 0) {
    constexpr int64_t kMost = 1 << 28;
    const auto distance = static_cast<int64_t>(at - bytecode);
    instruction =
        bytecode == 0 || std::abs(distance) > kMost ? kNoInstruction : static_cast<int>(distance);
  } else {
    instruction = static_cast<int32_t>(at) * (layout_.minor == 10 ? 2 : 1);
  }
  if (instruction < 0) instruction = 0;  // not begun
  std::unique_ptr<PythonPlace>& p = known->places[instruction];
  if (p == nullptr) {
    ++places_;
    p = std::make_unique<PythonPlace>();
    p->function = known->function;
    p->file = known->file;
    p->at = place_of(layout_.minor, known->table, first_line, instruction);
  }
  return p.get();
}

bool PythonProcess::read_bytes(uint64_t object, std::string& bytes) const {
  uint64_t size = 0;
  if (!memory_.read(object + layout_.bytes_size, size) || size > kMostTable) return false;
  bytes.resize(size);
  return size == 0 || memory_.read(object + layout_.bytes_data, bytes.data(), size);
}

bool PythonProcess::read_text(uint64_t object, std::string& text) const {
  uint64_t length = 0;
  uint32_t state = 0;
  if (!memory_.read(object + layout_.text_length, length) || length > kMostText ||
      !memory_.read(object + layout_.text_state, state))
    return false;
  // Bits after those that tell of interning, which are two, or eight without the lock.
  const uint32_t bits = state >> (layout_.without_lock && layout_.minor >= 14 ? 8 : 2);
  const uint32_t kind = bits & 7;
  const bool compact = (bits >> 3 & 1) != 0, ascii = (bits >> 4 & 1) != 0;
  if (!compact || (kind != 1 && kind != 2 && kind != 4)) return false;
  std::string bytes(length * kind, '\0');
  const uint64_t data = object + (ascii ? layout_.text_ascii : layout_.text_compact);
  if (!bytes.empty() && !memory_.read(data, bytes.data(), bytes.size())) return false;
  text.clear();
  for (size_t i = 0; i < length; ++i) {
    uint32_t c = 0;
    std::memcpy(&c, bytes.data() + i * kind, kind);
    append_utf8(text, c);
  }
  return true;
}

}  // namespace saturate::observe
