// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "base/toml.h"
#include "plan/machine_texts.h"

namespace saturate::plan {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();
constexpr std::array kProducts = {DType::f32, DType::bf16, DType::f16};

// As train.precision calls them.
std::string product_key(DType type) {
  return type == DType::f32 ? "fp32_tflops" : type == DType::f16 ? "fp16_tflops" : "bf16_tflops";
}

// The members of one table, each asked for by name; what is left over is refused.
class Fields {
 public:
  Fields(const TomlNode& node, std::string name, const std::string& source)
      : name_(std::move(name)), source_(source), line_(node.line) {
    const TomlNode::Table* table = node.if_table();
    if (table == nullptr) fail(node.line, name_, "a table is needed here, written [" + name_ + "]");
    members_ = table;
  }
  ~Fields() = default;

  const TomlNode* find(std::string_view key) {
    if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) asked_.emplace_back(key);
    for (const TomlMember& m : *members_)
      if (m.key == key) return &m.node;
    return nullptr;
  }
  const TomlNode& need(std::string_view key) {
    if (const TomlNode* node = find(key)) return *node;
    fail(line_, path(key), "it is missing; give it");
  }

  double number(std::string_view key, double fallback, double least, double most = kMost) {
    const TomlNode* node = find(key);
    return node == nullptr ? fallback : number_of(*node, path(key), least, most);
  }
  int integer(std::string_view key, int fallback, int least, int most) {
    const TomlNode* node = find(key);
    if (node == nullptr) return fallback;
    const auto* v = std::get_if<int64_t>(&node->value);
    if (v == nullptr || *v < least || *v > most)
      fail(node->line, path(key),
           fmt::format("it takes a whole number from {} to {}", least, most));
    return static_cast<int>(*v);
  }
  std::string text(std::string_view key) {
    const TomlNode& node = need(key);
    const auto* v = std::get_if<std::string>(&node.value);
    if (v == nullptr || v->empty()) fail(node.line, path(key), "it takes a text, in quotes");
    return *v;
  }
  std::vector<double> numbers(std::string_view key) {
    const TomlNode& node = need(key);
    const TomlNode::Array* array = node.if_array();
    if (array == nullptr || array->empty())
      fail(node.line, path(key), "it takes a list of numbers, as [8192, 1048576]");
    std::vector<double> out;
    for (const TomlNode& e : *array) out.push_back(number_of(e, path(key), 0, kMost));
    return out;
  }
  void reject_others() const {
    const std::vector<std::string_view> known(asked_.begin(), asked_.end());
    for (const TomlMember& m : *members_) {
      if (std::find(known.begin(), known.end(), m.key) == known.end())
        fail(m.line, path(m.key),
             fmt::format("there is no such key{}; known are {}", did_you_mean(m.key, known),
                         fmt::join(known, ", ")));
    }
  }
  std::string path(std::string_view key) const {
    return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
  }
  [[noreturn]] void fail(int line, const std::string& key, const std::string& rule) const {
    throw Error(Errc::invalid_argument, "machine",
                fmt::format("{}:{}: {:.80}: {}", source_, line, key, rule));
  }

 private:
  double number_of(const TomlNode& node, const std::string& key, double least, double most) const {
    double value = std::nan("");
    if (const auto* i = std::get_if<int64_t>(&node.value)) value = static_cast<double>(*i);
    if (const auto* d = std::get_if<double>(&node.value)) value = *d;
    if (!(value >= least && value <= most && std::isfinite(value)))
      fail(node.line, key,
           most < kMost ? fmt::format("it takes a number from {:g} to {:g}", least, most)
                        : fmt::format("it takes a number of at least {:g}", least));
    return value;
  }

  std::string name_;
  const std::string& source_;
  int line_;
  const TomlNode::Table* members_ = nullptr;
  std::vector<std::string> asked_;
};

parallel::CollectiveKind kind_named(Fields& f) {
  using parallel::CollectiveKind;
  const std::string text = f.text("kind");
  std::vector<std::string_view> names;
  for (const auto kind :
       {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
        CollectiveKind::all_to_all, CollectiveKind::send_receive}) {
    if (text == name_of(kind)) return kind;
    names.emplace_back(name_of(kind));
  }
  f.fail(f.need("kind").line, f.path("kind"),
         fmt::format("'{:.40}' is no collective{}; it takes {}", text, did_you_mean(text, names),
                     fmt::join(names, ", ")));
}

Link read_link(Fields f, bool between) {
  Link link{.latency_us = f.number("latency_us", 0, 0, 1e9), .gbs = f.number("gbs", 0, 1e-6, 1e6)};
  if (link.gbs == 0) f.need("gbs");
  if (between) link.adapters = f.integer("adapters", 1, 1, 1024);
  f.reject_others();
  return link;
}

void read_table(Machine& m, Fields f) {
  LinkTable t{.kind = kind_named(f), .ranks = f.integer("ranks", 2, 2, 65536)};
  const std::string level = f.text("within");
  if (level != "host" && level != "network")
    f.fail(f.need("within").line, f.path("within"), "it takes \"host\" or \"network\"");
  t.bytes = f.numbers("bytes");
  t.us = f.numbers("us");
  const int line = f.need("us").line;
  if (t.bytes.size() != t.us.size())
    f.fail(line, f.path("us"),
           fmt::format("{} times stand beside {} sizes: give one for each", t.us.size(),
                       t.bytes.size()));
  if (!std::is_sorted(t.bytes.begin(), t.bytes.end(), std::less_equal<>()))
    f.fail(f.need("bytes").line, f.path("bytes"),
           "sizes must ascend, each larger than the one before");
  if (std::any_of(t.us.begin(), t.us.end(), [](double us) { return us <= 0; }))
    f.fail(line, f.path("us"), "every time must be above 0");
  f.reject_others();
  (level == "host" ? m.inside : m.between).tables.push_back(std::move(t));
}

int64_t memory_of(Fields& f) {
  const std::string text = f.text("memory");
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes == 0)
    f.fail(f.need("memory").line, f.path("memory"),
           fmt::format("'{:.40}' is no size; write it as \"139GiB\"", text));
  return *bytes;
}

Compute read_compute(Fields f) {
  Compute c;
  for (const DType type : kProducts) {
    const double rate = f.number(product_key(type), 0, 1e-6, 1e6);
    if (rate > 0) c.tflops[type] = rate;
  }
  if (c.tflops.empty()) f.need("bf16_tflops");
  f.need("bandwidth_gbs");
  c.attention = f.number("attention", c.attention, 0.01, 1);
  c.attention_long = f.number("attention_long", c.attention, 0.01, 1);
  c.half_gflop = f.number("half_gflop", 0, 0, 1e6);
  c.bandwidth_gbs = f.number("bandwidth_gbs", 0, 1e-6, 1e6);
  c.half_mb = f.number("half_mb", 0, 0, 1e6);
  c.launch_us = f.number("launch_us", 0, 0, 1e6);
  c.beside_collectives = f.number("beside_collectives", 1, 0.01, 1);
  f.reject_others();
  return c;
}

// A number as TOML reads it back: with a point or an exponent where it is no whole number.
std::string number_text(double value) { return fmt::format("{}", value); }

std::string list_text(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double v : values) texts.push_back(number_text(v));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

void append_link(std::string& out, const char* name, const Link& l) {
  if (l.gbs == 0) return;
  out += fmt::format("\n[{}]\nlatency_us = {}\ngbs = {}\n", name, number_text(l.latency_us),
                     number_text(l.gbs));
  if (l.adapters > 0) out += fmt::format("adapters = {}\n", l.adapters);
}

void append_tables(std::string& out, const char* level, const Link& l) {
  for (const LinkTable& t : l.tables) {
    out += fmt::format(
        "\n[[table]]\nwithin = \"{}\"\nkind = \"{}\"\nranks = {}\nbytes = {}\nus = {}\n", level,
        name_of(t.kind), t.ranks, list_text(t.bytes), list_text(t.us));
  }
}

}  // namespace

Machine parse_machine(std::string_view toml, const std::string& source) {
  const TomlNode root = parse_toml(toml, source);
  Fields f(root, "", source);
  Machine m;
  m.name = f.text("name");
  m.device = f.text("device");
  m.memory_bytes = memory_of(f);
  if (const TomlNode* gpu = f.find("gpu")) {
    const bool* v = std::get_if<bool>(&gpu->value);
    if (v == nullptr) f.fail(gpu->line, "gpu", "it takes true or false");
    m.gpu = *v;
  }
  if (f.find("watts") != nullptr) m.watts = f.number("watts", 0, 1, 1e5);
  m.devices_per_host = f.integer("devices_per_host", 1, 1, 1024);
  m.host_copy_gbs = f.number("host_copy_gbs", 0, 1e-6, 1e6);
  m.compute = read_compute(Fields(f.need("compute"), "compute", source));
  if (const TomlNode* n = f.find("inside_host"))
    m.inside = read_link(Fields(*n, "inside_host", source), false);
  if (const TomlNode* n = f.find("between_hosts"))
    m.between = read_link(Fields(*n, "between_hosts", source), true);
  if (const TomlNode* n = f.find("failures")) {
    Fields x(*n, "failures", source);
    x.need("device_mtbf_hours");
    m.failures.device_mtbf_hours = x.number("device_mtbf_hours", 0, 1e-3, 1e9);
    m.failures.restart_s = x.number("restart_s", 0, 0, 1e6);
    m.failures.checkpoint_s = x.number("checkpoint_s", 0, 0, 1e6);
    m.failures.checkpoint_gbs = x.number("checkpoint_gbs", 1, 1e-6, 1e6);
    x.reject_others();
  }
  const auto each = [&](const char* key, const auto& read) {
    const TomlNode* list = f.find(key);
    if (list == nullptr) return;
    if (list->if_array() == nullptr)
      f.fail(list->line, key, fmt::format("it is a list of tables, each written [[{}]]", key));
    for (const TomlNode& n : *list->if_array()) read(Fields(n, key, source));
  };
  each("table", [&](Fields x) { read_table(m, std::move(x)); });
  each("operation", [&](Fields x) {
    const std::string key = x.text("key");
    x.need("us");
    m.operations[key] = x.number("us", 0, 0, 1e9);
    x.reject_others();
  });
  f.reject_others();
  for (const auto& [link, name] :
       {std::pair(&m.inside, "inside_host"), std::pair(&m.between, "between_hosts")}) {
    if (!link->tables.empty() && link->gbs == 0)
      f.fail(root.line, name, "there are tables of this link; give its latency_us and gbs too");
  }
  return m;
}

Machine read_machine(const std::string& name) {
  for (const MachineText& m : kMachines)
    if (name == m.name) return parse_machine(m.text, fmt::format("<{}>", m.name));
  if (!std::filesystem::exists(name) && name.find('/') == std::string::npos &&
      name.find('.') == std::string::npos) {
    const auto names = machine_names();
    throw Error(Errc::invalid_argument, "machine",
                fmt::format("there is no machine '{:.80}'{}; give a file, or one of {}", name,
                            did_you_mean(name, names), fmt::join(names, ", ")));
  }
  return parse_machine(read_toml_text(name), name);
}

std::vector<std::string_view> machine_names() {
  std::vector<std::string_view> names;
  for (const MachineText& m : kMachines) names.emplace_back(m.name);
  return names;
}

std::string to_toml(const Machine& m) {
  std::string out =
      fmt::format("name = {}\ndevice = {}\ngpu = {}\nmemory = \"{}\"\ndevices_per_host = {}\n",
                  quoted(m.name), quoted(m.device), m.gpu, m.memory_bytes, m.devices_per_host);
  if (m.watts) out += fmt::format("watts = {}\n", number_text(*m.watts));
  if (m.host_copy_gbs > 0) out += fmt::format("host_copy_gbs = {}\n", number_text(m.host_copy_gbs));
  const Compute& c = m.compute;
  out += "\n[compute]\n";
  for (const auto& [type, rate] : c.tflops)
    out += fmt::format("{} = {}\n", product_key(type), number_text(rate));
  out += fmt::format(
      "attention = {}\nattention_long = {}\nhalf_gflop = {}\nbandwidth_gbs = {}\nhalf_mb = {}\n"
      "launch_us = {}\nbeside_collectives = {}\n",
      number_text(c.attention), number_text(std::max(c.attention, c.attention_long)),
      number_text(c.half_gflop), number_text(c.bandwidth_gbs), number_text(c.half_mb),
      number_text(c.launch_us), number_text(c.beside_collectives));
  append_link(out, "inside_host", m.inside);
  append_link(out, "between_hosts", m.between);
  if (m.failures.device_mtbf_hours > 0)
    out += fmt::format(
        "\n[failures]\ndevice_mtbf_hours = {}\nrestart_s = {}\ncheckpoint_s = {}\n"
        "checkpoint_gbs = {}\n",
        number_text(m.failures.device_mtbf_hours), number_text(m.failures.restart_s),
        number_text(m.failures.checkpoint_s), number_text(m.failures.checkpoint_gbs));
  append_tables(out, "host", m.inside);
  append_tables(out, "network", m.between);
  for (const auto& [key, us] : m.operations)
    out += fmt::format("\n[[operation]]\nkey = {}\nus = {}\n", quoted(key), number_text(us));
  return out;
}

}  // namespace saturate::plan
