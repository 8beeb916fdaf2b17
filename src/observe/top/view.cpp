// SPDX-License-Identifier: Apache-2.0
#include "observe/top/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace saturate::observe {
namespace {

int64_t gpu_memory(const ProcessView& p) {
  int64_t sum = -1;
  for (const GpuUse& g : p.gpus) {
    if (g.memory) sum = std::max<int64_t>(sum, 0) + *g.memory;
  }
  return sum;
}

int utilisation(const ProcessView& p) {
  int most = -1;
  for (const GpuUse& g : p.gpus) most = std::max(most, g.utilisation.value_or(-1));
  return most;
}

// Largest first for amounts, smallest first for names and numbers.
bool before(const ProcessView& a, const ProcessView& b, SortBy by) {
  const auto gpu = [](const ProcessView& p) { return p.gpus.empty() ? 1 << 20 : p.gpus[0].gpu; };
  switch (by) {
    case SortBy::pid:
      return a.pid < b.pid;
    case SortBy::user:
      return a.user < b.user;
    case SortBy::memory:
      return gpu_memory(a) > gpu_memory(b);
    case SortBy::utilisation:
      return utilisation(a) > utilisation(b);
    case SortBy::cpu:
      return a.cpu.value_or(-1) > b.cpu.value_or(-1);
    case SortBy::resident:
      return a.resident.value_or(-1) > b.resident.value_or(-1);
    case SortBy::switches:
      return a.voluntary.value_or(-1) + a.involuntary.value_or(0) >
             b.voluntary.value_or(-1) + b.involuntary.value_or(0);
    case SortBy::gpu:
    case SortBy::count:
      break;
  }
  return gpu(a) < gpu(b);
}

const ProcessView* selected(const View& view, const std::vector<const ProcessView*>& shown) {
  for (const ProcessView* p : shown) {
    if (p->pid == view.selected) return p;
  }
  return nullptr;
}

void move(View& view, const Snapshot& s, int by) {
  const auto shown = visible_processes(view, s);
  if (shown.empty()) return;
  int at = -1;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (shown[i]->pid == view.selected) at = static_cast<int>(i);
  }
  at = at < 0 ? (by > 0 ? 0 : static_cast<int>(shown.size()) - 1) : at + by;
  at = std::clamp(at, 0, static_cast<int>(shown.size()) - 1);
  view.selected = shown[static_cast<size_t>(at)]->pid;
}

void start_kill(View& view, const Snapshot& s, int signal) {
  const ProcessView* p = selected(view, visible_processes(view, s));
  if (view.read_only) {
    view.message = "read-only: nothing is killed";
  } else if (!p) {
    view.message = "select a process first, with the arrows";
  } else if (!p->seen || p->guessed) {
    view.message = "its pid is not known for certain here; nothing is killed";
  } else {
    view.signal = signal;
    view.mode = signal ? View::Mode::confirm : View::Mode::choose_signal;
  }
}

void edit_filter(View& view, KeyPress key) {
  if (key.key == Key::enter) {
    view.mode = View::Mode::normal;
  } else if (key.key == Key::escape) {
    view.filter.clear();
    view.mode = View::Mode::normal;
  } else if (key.key == Key::backspace) {
    if (!view.filter.empty()) view.filter.pop_back();
  } else if (key.key == Key::character && view.filter.size() < 64) {
    view.filter += key.character;
  }
}

void change_sort(View& view, int by) {
  const int count = static_cast<int>(SortBy::count);
  view.sort = static_cast<SortBy>((static_cast<int>(view.sort) + by + count) % count);
}

void press_character(View& view, const Snapshot& s, char c, Action& action) {
  switch (c) {
    case 'q':
      action.quit = true;
      break;
    case 'h':
    case '?':
      view.help = true;
      break;
    case 't':
      view.tree = !view.tree;
      break;
    case 'c':
      view.whole_command = !view.whole_command;
      break;
    case 'p':
    case ' ':
      view.paused = !view.paused;
      break;
    case 'r':
      view.reverse = !view.reverse;
      break;
    case '.':
    case '>':
      change_sort(view, 1);
      break;
    case ',':
    case '<':
      change_sort(view, -1);
      break;
    case 'f':
    case '/':
    case '\\':
      view.mode = View::Mode::filter;
      break;
    case '+':
      view.interval_s = std::min(view.interval_s * 2, 60.0);
      break;
    case '-':
      view.interval_s = std::max(view.interval_s / 2, 0.25);
      break;
    case 'k':
      start_kill(view, s, 0);
      break;
    case 'T':
      start_kill(view, s, SIGTERM);
      break;
    case 'K':
      start_kill(view, s, SIGKILL);
      break;
    case 'I':
      start_kill(view, s, SIGINT);
      break;
    default:
      break;
  }
}

}  // namespace

const char* sort_name(SortBy by) {
  static constexpr const char* kNames[] = {"GPU",  "PID", "USER", "GPU memory",
                                           "GPU%", "CPU", "RSS",  "switches"};
  return by < SortBy::count ? kNames[static_cast<size_t>(by)] : "";
}

bool matches_filter(const ProcessView& p, const std::string& filter) {
  for (const std::string& text :
       {std::to_string(p.pid), p.user, p.name, p.command, p.verdict.word}) {
    if (text.find(filter) != std::string::npos) return true;
  }
  return filter.empty();
}

std::vector<const ProcessView*> visible_processes(const View& view, const Snapshot& s) {
  // A process and its workers stay together; a worker that matches shows its process too.
  struct Group {
    const ProcessView* head;
    std::vector<const ProcessView*> workers;
  };
  std::vector<Group> groups;
  for (const ProcessView& p : s.processes) {
    if (!p.worker) {
      groups.push_back({&p, {}});
    } else if (view.tree && !groups.empty()) {
      groups.back().workers.push_back(&p);
    }
  }
  std::erase_if(groups, [&](const Group& g) {
    return !matches_filter(*g.head, view.filter) &&
           std::none_of(g.workers.begin(), g.workers.end(),
                        [&](const ProcessView* w) { return matches_filter(*w, view.filter); });
  });
  std::stable_sort(groups.begin(), groups.end(), [&](const Group& a, const Group& b) {
    return view.reverse ? before(*b.head, *a.head, view.sort) : before(*a.head, *b.head, view.sort);
  });
  std::vector<const ProcessView*> shown;
  for (const Group& g : groups) {
    shown.push_back(g.head);
    shown.insert(shown.end(), g.workers.begin(), g.workers.end());
  }
  return shown;
}

Action press(View& view, const Snapshot& s, KeyPress key) {
  Action action;
  view.message.clear();
  if (key.key == Key::interrupt) {
    action.quit = true;
    return action;
  }
  if (view.help) {  // any key leaves it
    view.help = false;
    return action;
  }
  if (view.mode == View::Mode::filter) {
    edit_filter(view, key);
    return action;
  }
  if (view.mode == View::Mode::choose_signal) {
    view.mode = View::Mode::normal;
    if (key.key != Key::character) return action;
    const int signal = key.character == 't'   ? SIGTERM
                       : key.character == 'k' ? SIGKILL
                       : key.character == 'i' ? SIGINT
                                              : 0;
    if (signal) start_kill(view, s, signal);
    return action;
  }
  if (view.mode == View::Mode::confirm) {
    view.mode = View::Mode::normal;
    const ProcessView* p = selected(view, visible_processes(view, s));
    if (key.key == Key::character && key.character == 'y' && p && p->seen && !p->guessed) {
      action.kill_pid = p->pid;
      action.signal = view.signal;
      action.kill_start_ticks = p->start_ticks;
    } else {
      view.message = "nothing was killed";
    }
    return action;
  }
  // Function keys and arrows mean a letter, or move the selection.
  constexpr std::pair<Key, char> kLetters[] = {{Key::left, '<'}, {Key::right, '>'}, {Key::f1, 'h'},
                                               {Key::f4, '/'},   {Key::f5, 't'},    {Key::f6, '>'},
                                               {Key::f9, 'k'},   {Key::f10, 'q'}};
  constexpr std::pair<Key, int> kMoves[] = {{Key::up, -1},         {Key::down, 1},
                                            {Key::page_up, -10},   {Key::page_down, 10},
                                            {Key::home, -1 << 20}, {Key::end, 1 << 20}};
  if (key.key == Key::character) press_character(view, s, key.character, action);
  for (const auto& [special, letter] : kLetters)
    if (key.key == special) press_character(view, s, letter, action);
  for (const auto& [special, by] : kMoves)
    if (key.key == special) move(view, s, by);
  if (key.key == Key::escape) {
    view.filter.clear();
    view.selected = 0;
  }
  return action;
}

}  // namespace saturate::observe
