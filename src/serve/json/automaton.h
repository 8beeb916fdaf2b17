// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "serve/json/schema.h"

namespace saturate::serve {

/// Reads JSON byte by byte and says what may come next, for values that a schema allows. A pushdown
/// automaton: a stack is the innermost thing that is being written and, below it, what goes on when that
/// ends. Stacks share what is below them and are numbers, equal ones the same number, so that what is known
/// of one is known whenever it comes again. Where a schema has alternatives several stacks are possible.
///
/// What is written is JSON in UTF-8, each member and element in the order of the schema, names and listed
/// values in one spelling. Spaces: at most 32 in a row, and none before a colon. Numbers: at most
/// 15 digits before and behind the point and two of an exponent, so that they are read back as they are.
/// Strings: escapes of surrogates (\\ud800) never, the characters themselves instead; with a pattern
/// no escapes but \\" and \\\\. From every stack
/// some text leads to the end.
///
/// A text that is no JSON (JsonSchema::is_text) is read as it is.
class JsonAutomaton {
 public:
  explicit JsonAutomaton(JsonSchema schema);

  int32_t start() const noexcept { return start_; }
  // Appends the stacks that `byte` leads to, none where it may not come. Cost: some tens of nanoseconds.
  void step(int32_t stack, unsigned char byte, std::vector<int32_t>& out);
  // Whether the value may end here.
  bool complete(int32_t stack) const;
  // Within the text of a string, whose next character may be any: how many of them may come, -1 without a
  // bound. -2: not within one.
  int32_t free_characters(int32_t stack) const;

  // Within a text or number that is held to a pattern: which, its state, and the stack with another of its states.
  bool in_pattern(int32_t stack) const { return frame(stack).kind == Kind::pattern; }
  const Dfa& pattern_of(int32_t stack) const {
    return schema_.patterns[static_cast<size_t>(frame(stack).b)];
  }
  int16_t pattern_state(int32_t stack) const { return static_cast<int16_t>(frame(stack).a); }
  int32_t with_pattern_state(int32_t stack, int16_t state) {
    Frame f = frame(stack);
    f.a = state;
    return number_of(f);
  }

  const JsonSchema& schema() const noexcept { return schema_; }
  size_t stacks() const noexcept { return frames_.size(); }

 private:
  enum class Kind : uint8_t {
    end,
    value,
    object,
    array,
    string,
    other_name,
    number,
    literal,
    pattern
  };
  enum class Phase : uint8_t {
    none,
    // object and array
    open,
    after_value,
    comma,
    name,
    colon,
    // string: a character begins; what an escape or a character of several bytes lacks
    plain,
    escape,
    hex1,
    hex_d,
    hex2,
    hex3,
    hex4,
    rest1,
    rest2,
    rest3,
    rest_e0,
    rest_ed,
    rest_f0,
    rest_f4,
    // number
    minus,
    zero,
    whole,
    point,
    fraction,
    exponent,
    sign,
    power
  };
  // What a, b and c count:
  //   value       a spaces
  //   object      a the next property; name: b the one that it may be, c its bytes that are there;
  //               colon: b the node of the value; else c spaces. Where members are counted: d all of them,
  //               e twice those whose names are properties, and 1 where there is another one
  //   array       a elements that must come, b that may (-1: any number), c spaces; d those that are there,
  //               as far as the first have schemas of their own
  //   string      a characters that must come, b that may
  //   other_name  a the property whose name begins so (-1: none), b its bytes that are there
  //   number      a digits
  //   literal     a the text that it may be, b its bytes that are there
  //   pattern     a the state of the pattern b, of a string between its quotes (plain), or of a number or a text
  //               (whole)
  struct Frame {
    Kind kind = Kind::end;
    Phase phase = Phase::none;
    int32_t node = -1, parent = 0, a = 0, b = 0, c = 0, d = 0, e = 0;
    bool operator==(const Frame&) const = default;
  };
  struct Hash {
    size_t operator()(const Frame& f) const noexcept;
  };

  const Frame& frame(int32_t stack) const { return frames_[static_cast<size_t>(stack)]; }
  int32_t number_of(const Frame& f);
  void begin(int32_t node, int32_t parent, unsigned char byte, std::vector<int32_t>& out);
  void object(Frame f, unsigned char byte, std::vector<int32_t>& out);
  void begin_name(Frame f, std::vector<int32_t>& out);
  void name(Frame f, unsigned char byte, std::vector<int32_t>& out);
  void array(Frame f, unsigned char byte, std::vector<int32_t>& out);
  void string(Frame f, unsigned char byte, std::vector<int32_t>& out);
  void other_name(Frame f, unsigned char byte, std::vector<int32_t>& out);
  void number(Frame f, unsigned char byte, std::vector<int32_t>& out);
  void literal(Frame f, unsigned char byte, std::vector<int32_t>& out);
  void pattern(Frame f, unsigned char byte, std::vector<int32_t>& out);
  bool spaced(Frame& f, int32_t& spaces, unsigned char byte, std::vector<int32_t>& out);
  static Phase next_phase(Phase phase, unsigned char byte);

  const JsonSchema::Node& node(int32_t i) const { return schema_.nodes[static_cast<size_t>(i)]; }
  int32_t levels(int32_t stack) const { return levels_[static_cast<size_t>(stack)]; }
  bool fits(int32_t child, int32_t parent_levels) const {
    return parent_levels + node(child).levels <= kMostJsonLevels;
  }
  int32_t candidate(const Frame& f, int32_t from, std::string_view begins) const;
  bool more_members(const Frame& f) const;
  bool another_may_come(const Frame& f) const;
  struct Ahead {
    int32_t required = 0, possible = 0;  // members
  };
  Ahead ahead_of(const Frame& f) const;
  bool can_end(const Frame& f, const Ahead& ahead) const;
  bool another_fits(const Frame& f) const;
  static bool is_counted(const JsonSchema::Node& n) { return n.least > 0 || n.most >= 0; }
  static void count(const JsonSchema::Node& n, Frame& f, bool property);
  const Dfa::State& state(const Frame& f) const {
    return schema_.patterns[static_cast<size_t>(f.b)].states[static_cast<size_t>(f.a)];
  }
  bool all_required(const Frame& f) const;
  static bool ends(Phase phase) {
    return phase == Phase::zero || phase == Phase::whole || phase == Phase::fraction ||
           phase == Phase::power;
  }

  const JsonSchema schema_;
  std::vector<Frame> frames_;    // by number; 0: the value has ended
  std::vector<int32_t> levels_;  // objects and arrays that are open
  std::unordered_map<Frame, int32_t, Hash> numbers_;
  int32_t start_ = 0;
};

}  // namespace saturate::serve
