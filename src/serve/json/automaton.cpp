// SPDX-License-Identifier: Apache-2.0
#include "serve/json/automaton.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace saturate::serve {
namespace {

constexpr int32_t kMostSpaces = 32, kMostDigits = 15, kMostPower = 2;

bool is_space(unsigned char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
bool is_hex(unsigned char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
// Of a bound that may be none.
int32_t one_less(int32_t room) { return room < 0 ? room : room - 1; }

}  // namespace

size_t JsonAutomaton::Hash::operator()(const Frame& f) const noexcept {
  uint64_t h = static_cast<uint64_t>(f.kind) << 8 | static_cast<uint64_t>(f.phase);
  for (const int32_t v : {f.node, f.parent, f.a, f.b, f.c, f.d, f.e}) {
    h = (h ^ static_cast<uint32_t>(v)) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  }
  return h;
}

JsonAutomaton::JsonAutomaton(JsonSchema schema) : schema_(std::move(schema)) {
  number_of({});
  if (!schema_.is_text) {
    start_ = number_of({.kind = Kind::value, .node = schema_.root});
  } else if (const int32_t pattern = node(schema_.root).pattern; pattern >= 0) {
    start_ = number_of({Kind::pattern, Phase::whole, -1, 0, 0, pattern});
  } else {
    start_ = number_of({.kind = Kind::literal, .node = schema_.root});
  }
}

int32_t JsonAutomaton::number_of(const Frame& f) {
  const auto [at, fresh] = numbers_.try_emplace(f, static_cast<int32_t>(frames_.size()));
  if (fresh) {
    const bool nests = f.kind == Kind::object || f.kind == Kind::array;
    levels_.push_back((f.kind == Kind::end ? 0 : levels(f.parent)) + (nests ? 1 : 0));
    frames_.push_back(f);
  }
  return at->second;
}

void JsonAutomaton::step(int32_t stack, unsigned char byte, std::vector<int32_t>& out) {
  const Frame f = frames_[static_cast<size_t>(stack)];  // a copy: the list grows
  switch (f.kind) {
    case Kind::end:
      return;
    case Kind::value: {
      Frame next = f;
      if (!spaced(next, next.a, byte, out)) begin(f.node, f.parent, byte, out);
      return;
    }
    case Kind::object:
      return object(f, byte, out);
    case Kind::array:
      return array(f, byte, out);
    case Kind::string:
      // The text of a string without bounds, which most of what is asked about is.
      if (f.phase == Phase::plain && f.a == 0 && f.b < 0 && byte >= 0x20 && byte < 0x80 &&
          byte != '"' && byte != '\\')
        return out.push_back(stack);
      return string(f, byte, out);
    case Kind::other_name:
      return other_name(f, byte, out);
    case Kind::number:
      return number(f, byte, out);
    case Kind::literal:
      return literal(f, byte, out);
    case Kind::pattern:
      if (state(f).next[byte] == f.a) return out.push_back(stack);
      return pattern(f, byte, out);
  }
}

bool JsonAutomaton::complete(int32_t stack) const {
  const Frame& f = frames_[static_cast<size_t>(stack)];
  if (f.kind == Kind::end) return true;
  if (f.parent != 0) return false;
  if (f.kind == Kind::number) return ends(f.phase);
  if (f.kind == Kind::pattern) return f.phase != Phase::plain && state(f).accepts;
  return f.kind == Kind::literal && std::ssize(node(f.node).texts[static_cast<size_t>(f.a)]) == f.b;
}

int32_t JsonAutomaton::free_characters(int32_t stack) const {
  const Frame& f = frames_[static_cast<size_t>(stack)];
  if (f.phase != Phase::plain) return -2;
  if (f.kind == Kind::string) return f.b;
  return f.kind == Kind::other_name && f.a < 0 ? -1 : -2;
}

// A space where there may be some.
bool JsonAutomaton::spaced(Frame& f, int32_t& spaces, unsigned char byte,
                           std::vector<int32_t>& out) {
  if (!is_space(byte)) return false;
  if (++spaces <= kMostSpaces) out.push_back(number_of(f));
  return true;
}

// The first byte of a value.
void JsonAutomaton::begin(int32_t which, int32_t parent, unsigned char byte,
                          std::vector<int32_t>& out) {
  using NodeKind = JsonSchema::Node::Kind;
  const JsonSchema::Node& n = node(which);
  if (!fits(which, levels(parent))) return;
  Frame f{.node = which, .parent = parent};
  switch (n.kind) {
    case NodeKind::any_of:
      for (const int32_t each : n.alternatives) begin(each, parent, byte, out);
      return;
    case NodeKind::object:
      f.kind = Kind::object;
      f.phase = Phase::open;
      if (byte == '{') out.push_back(number_of(f));
      return;
    case NodeKind::array:
      f = {Kind::array, Phase::open, which, parent, n.least, n.most};
      if (byte == '[') out.push_back(number_of(f));
      return;
    case NodeKind::string:
      // Without its node: strings of the same bounds are the same.
      f = {Kind::string, Phase::plain, -1, parent, n.least, n.most};
      if (n.pattern >= 0) f = {Kind::pattern, Phase::plain, -1, parent, 0, n.pattern};
      if (byte == '"') out.push_back(number_of(f));
      return;
    case NodeKind::number:
    case NodeKind::integer:
      if (n.pattern >= 0)
        return pattern({Kind::pattern, Phase::whole, -1, parent, 0, n.pattern}, byte, out);
      f.kind = Kind::number;
      if (byte == '-') {
        f.phase = Phase::minus;
      } else if (is_digit(byte)) {
        f.phase = byte == '0' ? Phase::zero : Phase::whole;
        f.a = 1;
      } else {
        return;
      }
      out.push_back(number_of(f));
      return;
    case NodeKind::prefixed:
      f.parent = number_of({.kind = Kind::value, .node = n.items, .parent = parent});
      [[fallthrough]];
    case NodeKind::literal:
      f.kind = Kind::literal;
      literal(f, byte, out);
  }
}

// One more member, where they are counted.
void JsonAutomaton::count(const JsonSchema::Node& n, Frame& f, bool property) {
  if (!is_counted(n)) return;
  if (n.most >= 0) ++f.d;
  if (!property)
    f.e |= 1;
  else if (f.e / 2 < n.least)
    f.e += 2;
}

// Whether members with other names than those of properties have values that fit.
bool JsonAutomaton::another_may_come(const Frame& f) const {
  const JsonSchema::Node& n = node(f.node);
  const int32_t own_levels = levels(f.parent) + 1;
  return (n.rest >= 0 && fits(n.rest, own_levels)) ||
         std::ranges::any_of(n.names, [&](const auto& one) { return fits(one.node, own_levels); });
}

// What may still come where members are counted, with properties from the next one on.
JsonAutomaton::Ahead JsonAutomaton::ahead_of(const Frame& f) const {
  const JsonSchema::Node& n = node(f.node);
  // Of those with other names one counts: more may have the same name.
  Ahead ahead{.possible = (f.e & 1) == 0 && another_may_come(f) ? 1 : 0};
  for (size_t i = static_cast<size_t>(f.a); i < n.properties.size(); ++i) {
    ahead.required += n.properties[i].required ? 1 : 0;
    ahead.possible += fits(n.properties[i].node, levels(f.parent) + 1) ? 1 : 0;
  }
  return ahead;
}

// Whether there can be as many members as there must, and no more than there may.
bool JsonAutomaton::can_end(const Frame& f, const Ahead& ahead) const {
  const JsonSchema::Node& n = node(f.node);
  const int32_t lacking = std::max(0, n.least - f.e / 2 - (f.e & 1));
  return lacking <= ahead.possible &&
         (n.most < 0 || f.d + std::max(ahead.required, lacking) <= n.most);
}

// Whether one with another name may come.
bool JsonAutomaton::another_fits(const Frame& f) const {
  if (!another_may_come(f)) return false;
  if (!is_counted(node(f.node))) return true;
  Frame then = f;
  count(node(f.node), then, false);
  return can_end(then, ahead_of(then));
}

// The first property from `from` on, of those that may come, whose name begins so; -1: none.
int32_t JsonAutomaton::candidate(const Frame& f, int32_t from, std::string_view begins) const {
  const JsonSchema::Node& n = node(f.node);
  const bool counted = is_counted(n);
  Frame then = f;
  count(n, then, true);
  Ahead ahead = counted ? ahead_of(f) : Ahead{};
  for (int32_t i = f.a; i < std::ssize(n.properties); ++i) {
    const JsonSchema::Property& p = n.properties[static_cast<size_t>(i)];
    // An object's own level is that of its parent and one.
    const bool may_come = i >= from || counted ? fits(p.node, levels(f.parent) + 1) : false;
    ahead.required -= p.required ? 1 : 0;
    ahead.possible -= may_come ? 1 : 0;
    if (i >= from && may_come && p.name.starts_with(begins) && (!counted || can_end(then, ahead)))
      return i;
    if (p.required) break;  // none behind it comes before it
  }
  return -1;
}

bool JsonAutomaton::more_members(const Frame& f) const {
  return another_fits(f) || candidate(f, f.a, "") >= 0;
}

bool JsonAutomaton::all_required(const Frame& f) const {
  const auto& properties = node(f.node).properties;
  return std::none_of(properties.begin() + f.a, properties.end(),
                      [](auto& p) { return p.required; });
}

void JsonAutomaton::object(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  if (f.phase == Phase::name) return name(f, byte, out);
  if (f.phase == Phase::colon) {
    if (byte != ':') return;
    const int32_t value = f.b;
    f.phase = Phase::after_value;
    f.b = 0;
    out.push_back(number_of({.kind = Kind::value, .node = value, .parent = number_of(f)}));
    return;
  }
  if (spaced(f, f.c, byte, out)) return;
  f.c = 0;
  if (byte == '}' && f.phase != Phase::comma && all_required(f) &&
      f.e / 2 + (f.e & 1) >= node(f.node).least) {
    out.push_back(f.parent);
  } else if (byte == ',' && f.phase == Phase::after_value) {
    f.phase = Phase::comma;
    if (more_members(f)) out.push_back(number_of(f));
  } else if (byte == '"' && f.phase != Phase::after_value) {
    begin_name(f, out);
  }
}

void JsonAutomaton::begin_name(Frame f, std::vector<int32_t>& out) {
  if (const int32_t first = candidate(f, f.a, ""); first >= 0) {
    Frame named = f;
    named.phase = Phase::name;
    named.b = first;
    out.push_back(number_of(named));
  }
  const JsonSchema::Node& n = node(f.node);
  const int32_t own_levels = levels(f.parent) + 1;
  if (!another_fits(f)) return;
  count(n, f, false);
  f.phase = Phase::colon;
  for (const JsonSchema::Names& one : n.names) {
    if (!fits(one.node, own_levels)) continue;
    f.b = one.node;
    out.push_back(number_of({Kind::pattern, Phase::plain, -1, number_of(f), 0, one.pattern}));
  }
  if (n.rest < 0 || !fits(n.rest, own_levels)) return;
  f.b = n.rest;
  const int32_t behind = number_of(f);
  if (n.properties.empty()) {
    out.push_back(number_of({Kind::string, Phase::plain, -1, behind, 0, -1}));
  } else {
    out.push_back(number_of({Kind::other_name, Phase::plain, f.node, behind}));
  }
}

void JsonAutomaton::name(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  const auto& properties = node(f.node).properties;
  std::string text = properties[static_cast<size_t>(f.b)].name.substr(0, static_cast<size_t>(f.c));
  text += static_cast<char>(byte);
  f.b = candidate(f, f.b, text);
  if (f.b < 0) return;
  ++f.c;
  if (const JsonSchema::Property& p = properties[static_cast<size_t>(f.b)]; p.name == text) {
    f = {Kind::object, Phase::colon, f.node, f.parent, f.b + 1, p.node, 0, f.d, f.e};
    count(node(f.node), f, true);
  }
  out.push_back(number_of(f));
}

void JsonAutomaton::array(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  if (spaced(f, f.c, byte, out)) return;
  f.c = 0;
  if (byte == ']') {
    if (f.a == 0) out.push_back(f.parent);
    return;
  }
  const JsonSchema::Node& n = node(f.node);
  const bool is_first = f.d < std::ssize(n.first);
  const int32_t items = is_first ? n.first[static_cast<size_t>(f.d)] : n.items;
  if (f.b == 0 || items < 0 || !fits(items, levels(f.parent) + 1)) return;
  if (is_first) ++f.d;
  const bool first = f.phase == Phase::open;
  f.phase = Phase::after_value;
  f.a = std::max(0, f.a - 1);
  f.b = one_less(f.b);
  if (first) {
    begin(items, number_of(f), byte, out);
  } else if (byte == ',') {
    out.push_back(number_of({.kind = Kind::value, .node = items, .parent = number_of(f)}));
  }
}

// What a byte within a string makes of it; none: it may not come. A quote is no text.
JsonAutomaton::Phase JsonAutomaton::next_phase(Phase phase, unsigned char byte) {
  const auto within = [byte](unsigned char least, unsigned char most, Phase next) {
    return byte >= least && byte <= most ? next : Phase::none;
  };
  switch (phase) {
    case Phase::plain:
      if (byte < 0x20 || byte == '"') return Phase::none;
      if (byte == '\\') return Phase::escape;
      if (byte < 0x80) return Phase::plain;
      if (byte == 0xE0) return Phase::rest_e0;
      if (byte == 0xED) return Phase::rest_ed;
      if (byte == 0xF0) return Phase::rest_f0;
      if (byte == 0xF4) return Phase::rest_f4;
      if (byte >= 0xC2 && byte <= 0xDF) return Phase::rest1;
      if (byte >= 0xE1 && byte <= 0xEF) return Phase::rest2;
      return within(0xF1, 0xF3, Phase::rest3);
    case Phase::escape:
      if (byte == 'u') return Phase::hex1;
      return std::string_view("\"\\/bfnrt").find(static_cast<char>(byte)) != std::string_view::npos
                 ? Phase::plain
                 : Phase::none;
    case Phase::hex1:
      if (!is_hex(byte)) return Phase::none;
      return byte == 'd' || byte == 'D' ? Phase::hex_d : Phase::hex2;
    case Phase::hex_d:
      return within('0', '7', Phase::hex3);  // above lie surrogates
    case Phase::hex2:
      return is_hex(byte) ? Phase::hex3 : Phase::none;
    case Phase::hex3:
      return is_hex(byte) ? Phase::hex4 : Phase::none;
    case Phase::hex4:
      return is_hex(byte) ? Phase::plain : Phase::none;
    case Phase::rest1:
      return within(0x80, 0xBF, Phase::plain);
    case Phase::rest2:
      return within(0x80, 0xBF, Phase::rest1);
    case Phase::rest3:
      return within(0x80, 0xBF, Phase::rest2);
    case Phase::rest_e0:
      return within(0xA0, 0xBF, Phase::rest1);
    case Phase::rest_ed:
      return within(0x80, 0x9F, Phase::rest1);
    case Phase::rest_f0:
      return within(0x90, 0xBF, Phase::rest2);
    case Phase::rest_f4:
      return within(0x80, 0x8F, Phase::rest2);
    default:
      return Phase::none;
  }
}

void JsonAutomaton::string(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  if (f.phase == Phase::plain) {
    if (byte == '"') {
      if (f.a == 0) out.push_back(f.parent);
      return;
    }
    if (f.b == 0) return;
    f.a = std::max(0, f.a - 1);
    f.b = one_less(f.b);
  }
  f.phase = next_phase(f.phase, byte);
  if (f.phase != Phase::none) out.push_back(number_of(f));
}

// A member's name that is none of those the schema gives: compared byte by byte, so that nothing is
// escaped while it may still be one.
void JsonAutomaton::other_name(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  const auto& properties = node(f.node).properties;
  const bool closes = f.phase == Phase::plain && byte == '"';
  if (f.a >= 0) {
    if (byte == '\\') return;
    std::string text =
        properties[static_cast<size_t>(f.a)].name.substr(0, static_cast<size_t>(f.b));
    text += static_cast<char>(byte);
    const auto same =
        std::ranges::find_if(properties, [&](const auto& p) { return p.name.starts_with(text); });
    if (closes && same != properties.end()) return;  // it is one
    f.a = same != properties.end() ? static_cast<int32_t>(same - properties.begin()) : -1;
    f.b = same != properties.end() ? f.b + 1 : 0;
  }
  if (closes) return out.push_back(f.parent);
  f.phase = next_phase(f.phase, byte);
  if (f.phase != Phase::none) out.push_back(number_of(f));
}

void JsonAutomaton::number(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  const bool real = node(f.node).kind == JsonSchema::Node::Kind::number, power = (byte | 32) == 'e';
  const Phase before = f.phase;
  const auto to = [&](Phase phase, int32_t digits) {
    f.phase = phase;
    f.a = digits;
    out.push_back(number_of(f));
  };
  if (is_digit(byte)) {
    if (before == Phase::minus) return to(byte == '0' ? Phase::zero : Phase::whole, 1);
    if (before == Phase::point) return to(Phase::fraction, 1);
    if (before == Phase::exponent || before == Phase::sign) return to(Phase::power, 1);
    if ((before == Phase::whole || before == Phase::fraction) && f.a < kMostDigits)
      to(before, f.a + 1);
    if (before == Phase::power && f.a < kMostPower) to(before, f.a + 1);
    return;
  }
  const bool whole = before == Phase::zero || before == Phase::whole;
  if (real && whole && byte == '.') return to(Phase::point, 0);
  if (real && power && (whole || before == Phase::fraction)) return to(Phase::exponent, 0);
  if (before == Phase::exponent && (byte == '+' || byte == '-')) return to(Phase::sign, 0);
  // A number has no end of its own: the byte is of what comes behind it.
  if (ends(before)) step(f.parent, byte, out);
}

void JsonAutomaton::pattern(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  const Dfa::State& from = state(f);
  if (from.next[byte] >= 0) {
    f.a = from.next[byte];
    return out.push_back(number_of(f));
  }
  if (!from.accepts) return;
  // A quote within the text has a backslash before it; a number has no end of its own.
  if (f.phase == Phase::whole) return step(f.parent, byte, out);
  if (byte == '"') out.push_back(f.parent);
}

void JsonAutomaton::literal(Frame f, unsigned char byte, std::vector<int32_t>& out) {
  const std::vector<std::string>& texts = node(f.node).texts;
  const auto there = static_cast<size_t>(f.b);
  const std::string begun = texts[static_cast<size_t>(f.a)].substr(0, there);
  const std::string now = begun + static_cast<char>(byte);
  // Sorted: the first text that is not before these bytes begins with them, or none does.
  const auto at = std::lower_bound(texts.begin() + f.a, texts.end(), now);
  if (at != texts.end() && at->starts_with(now)) {
    f.a = static_cast<int32_t>(at - texts.begin());
    ++f.b;
    const bool goes_on = at + 1 != texts.end() && (at + 1)->starts_with(now);
    return out.push_back(*at == now && !goes_on ? f.parent : number_of(f));
  }
  if (there > 0 && begun == texts[static_cast<size_t>(f.a)]) step(f.parent, byte, out);
}

}  // namespace saturate::serve
