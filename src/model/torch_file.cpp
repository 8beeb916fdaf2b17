// SPDX-License-Identifier: Apache-2.0
#include "model/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string_view>

#include "base/error.h"
#include "model/zip_file.h"

namespace saturate::model {
namespace {

using Bytes = std::span<const std::byte>;

struct Node {
  enum Kind : uint8_t { none, number, text, list, dictionary, global, storage, tensor, mark };
  Kind kind = none;
  int64_t value = 0;             // of a number; elements of a storage; first element of a tensor
  std::string_view string = {};  // of a text, a global ("torch FloatStorage"); key of a storage
  std::string_view type = {};    // of a storage
  std::vector<uint32_t> items = {};  // of lists and tuples; keys and values of a dictionary in turn
  std::vector<int64_t> shape = {};   // of a tensor, whose storage is items[0]
};

struct StorageType {
  std::string_view name, dtype;
};
constexpr std::array<StorageType, 9> kStorages = {{{"FloatStorage", "F32"},
                                                   {"HalfStorage", "F16"},
                                                   {"BFloat16Storage", "BF16"},
                                                   {"DoubleStorage", "F64"},
                                                   {"LongStorage", "I64"},
                                                   {"IntStorage", "I32"},
                                                   {"ShortStorage", "I16"},
                                                   {"ByteStorage", "U8"},
                                                   {"BoolStorage", "BOOL"}}};

std::string_view dtype_of(std::string_view storage) {
  for (const StorageType& s : kStorages)
    if (s.name == storage) return s.dtype;
  return {};
}

// Runs pickles one after the other. Nodes are numbered and never freed, so that what refers to itself
// neither leaks nor recurses.
class Pickle {
 public:
  Pickle(Bytes bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Errc::invalid_argument, "torch",
                fmt::format("{}: byte {} of its pickle {}; a file of weights has tensors by their "
                            "names alone: do not trust this one, or save it again as safetensors",
                            where_, at_, why));
  }

  const Node& operator[](uint32_t n) const { return nodes_[n]; }
  size_t at() const { return at_; }

  // Up to its end; the value that it leaves.
  uint32_t run() {
    stack_.clear();
    memo_.clear();
    for (;;) {
      const auto op = static_cast<uint8_t>(take(1)[0]);
      if (op == '.') return pop();
      step(op);
    }
  }

 private:
  Bytes take(size_t count) {
    if (count > bytes_.size() - at_) refuse("is beyond its end");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  template <class T>
  T take_number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view take_text(size_t count) {
    const Bytes b = take(count);
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }
  std::string_view take_line() {
    const size_t first = at_;
    while (take(1)[0] != std::byte{'\n'}) {
    }
    return {reinterpret_cast<const char*>(bytes_.data()) + first, at_ - 1 - first};
  }

  uint32_t push(Node node) {
    nodes_.push_back(std::move(node));
    stack_.push_back(static_cast<uint32_t>(nodes_.size() - 1));
    return stack_.back();
  }
  void push_number(int64_t value) { push({.kind = Node::number, .value = value}); }
  uint32_t pop() {
    if (stack_.empty()) refuse("takes a value that is not there");
    const uint32_t n = stack_.back();
    stack_.pop_back();
    return n;
  }
  Node& top() {
    if (stack_.empty()) refuse("takes a value that is not there");
    return nodes_[stack_.back()];
  }
  std::vector<uint32_t> pop_to_mark() {
    size_t first = stack_.size();
    while (first > 0 && nodes_[stack_[first - 1]].kind != Node::mark) --first;
    if (first == 0) refuse("takes values from a mark that is not there");
    std::vector<uint32_t> items(stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
    stack_.resize(first - 1);
    return items;
  }
  void push_tuple(size_t count) {
    std::vector<uint32_t> items(count);
    for (size_t i = count; i > 0; --i) items[i - 1] = pop();
    push({.kind = Node::list, .items = std::move(items)});
  }
  void remember(uint32_t place) {
    top();
    memo_[place] = stack_.back();
  }
  void recall(uint32_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) refuse("recalls what was never kept");
    stack_.push_back(found->second);
  }
  void extend(Node::Kind kind, const std::vector<uint32_t>& items) {
    if (top().kind != kind || (kind == Node::dictionary && items.size() % 2 != 0))
      refuse("adds to what is no list or dictionary");
    top().items.insert(top().items.end(), items.begin(), items.end());
  }

  void step(uint8_t op) {
    switch (op) {
      case 0x80:  // PROTO
        if (take_number<uint8_t>() > 2) refuse("is of a later protocol than PyTorch writes");
        return;
      case 'c': {  // GLOBAL: "module\nname\n"
        const size_t first = at_;
        take_line(), take_line();
        return push_global({reinterpret_cast<const char*>(bytes_.data()) + first, at_ - 1 - first});
      }
      case '(':
        push({.kind = Node::mark});
        return;
      case ')':
        return push_tuple(0);
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(op - 0x84u);
      case 't': {
        std::vector<uint32_t> items = pop_to_mark();
        push({.kind = Node::list, .items = std::move(items)});
        return;
      }
      case ']':
        push({.kind = Node::list});
        return;
      case '}':
        push({.kind = Node::dictionary});
        return;
      case 'a':
        return extend(Node::list, {pop()});
      case 'e':
        return extend(Node::list, pop_to_mark());
      case 's': {
        const uint32_t value = pop(), key = pop();
        return extend(Node::dictionary, {key, value});
      }
      case 'u':
        return extend(Node::dictionary, pop_to_mark());
      case 'N':
        push({});
        return;
      case 0x88:
      case 0x89:
        return push_number(op == 0x88 ? 1 : 0);
      case 'K':
        return push_number(take_number<uint8_t>());
      case 'M':
        return push_number(take_number<uint16_t>());
      case 'J':
        return push_number(take_number<int32_t>());
      case 0x8a:  // LONG1
        return push_long(take_number<uint8_t>());
      case 'X':
        push({.kind = Node::text, .string = take_text(take_number<uint32_t>())});
        return;
      case 'q':
        return remember(take_number<uint8_t>());
      case 'r':
        return remember(take_number<uint32_t>());
      case 'h':
        return recall(take_number<uint8_t>());
      case 'j':
        return recall(take_number<uint32_t>());
      case 'Q':
        return push_storage();
      case 'R':
        return call();
      case 'b':  // BUILD: the metadata that a state_dict carries beside its tensors
        pop();
        if (top().kind != Node::dictionary) refuse("gives a state to what is no dictionary");
        return;
      default:
        refuse(fmt::format("is instruction 0x{:02x}, which weights do not need", op));
    }
  }

  void push_long(size_t count) {
    const Bytes digits = take(count);
    uint64_t value =
        count > 0 && (digits[count - 1] & std::byte{0x80}) != std::byte{0} ? ~uint64_t{0} : 0;
    // Sixteen bytes at most, of which PyTorch's own magic number needs ten; what counts fits in eight.
    if (count > 16) refuse("is a number without measure");
    std::memcpy(&value, digits.data(), std::min<size_t>(count, sizeof value));
    push_number(static_cast<int64_t>(value));
  }

  void push_global(std::string_view name) {
    constexpr std::array<std::string_view, 3> kKnown = {"collections\nOrderedDict",
                                                        "torch._utils\n_rebuild_tensor_v2",
                                                        "torch._utils\n_rebuild_parameter"};
    const bool storage = name.starts_with("torch\n") && !dtype_of(name.substr(6)).empty();
    if (!storage && std::ranges::find(kKnown, name) == kKnown.end()) {
      std::string shown(name.substr(0, 200));
      std::ranges::replace(shown, '\n', '.');
      refuse(fmt::format("names {}, which weights do not need", shown));
    }
    push({.kind = Node::global, .string = name});
  }

  // ('storage', type, key, device, elements); before PyTorch 1.6 also what it is a part of.
  void push_storage() {
    const Node& id = nodes_[pop()];
    const auto part = [&](size_t i) -> const Node& { return nodes_[id.items[i]]; };
    if (id.kind != Node::list || id.items.size() < 5 || part(0).string != "storage" ||
        part(1).kind != Node::global || !part(1).string.starts_with("torch\n") ||
        part(2).kind != Node::text || part(4).kind != Node::number || part(4).value < 0)
      refuse("names no storage of a tensor");
    if (id.items.size() > 5 && part(5).kind != Node::none)
      refuse("names a part of a storage, as no state_dict has since PyTorch 0.4");
    push({.kind = Node::storage,
          .value = part(4).value,
          .string = part(2).string,
          .type = dtype_of(part(1).string.substr(6))});
  }

  void call() {
    const uint32_t arguments = pop();
    const Node function = nodes_[pop()];
    const std::vector<uint32_t> a = nodes_[arguments].items;
    if (function.kind != Node::global || nodes_[arguments].kind != Node::list)
      refuse("calls what is no function");
    if (function.string.ends_with("OrderedDict")) {
      if (!a.empty() && !nodes_[a[0]].items.empty()) refuse("makes a dictionary of a list");
      push({.kind = Node::dictionary});
    } else if (function.string.ends_with("_rebuild_parameter")) {
      if (a.empty() || nodes_[a[0]].kind != Node::tensor) refuse("makes a parameter of no tensor");
      stack_.push_back(a[0]);
    } else if (function.string.ends_with("_rebuild_tensor_v2")) {
      push_tensor(a);
    } else {
      refuse("calls what is no function");
    }
  }

  // (storage, first element, shape, strides, ...)
  void push_tensor(const std::vector<uint32_t>& a) {
    if (a.size() < 4 || nodes_[a[0]].kind != Node::storage || nodes_[a[1]].kind != Node::number ||
        nodes_[a[2]].kind != Node::list || nodes_[a[3]].kind != Node::list ||
        nodes_[a[2]].items.size() != nodes_[a[3]].items.size())
      refuse("describes no tensor");
    Node t{.kind = Node::tensor, .value = nodes_[a[1]].value, .items = {a[0]}};
    const std::vector<uint32_t>&sizes = nodes_[a[2]].items, &strides = nodes_[a[3]].items;
    int64_t elements = 1;
    const int64_t most = nodes_[a[0]].value;
    for (size_t i = sizes.size(); i > 0; --i) {
      const Node &size = nodes_[sizes[i - 1]], &stride = nodes_[strides[i - 1]];
      if (size.kind != Node::number || stride.kind != Node::number || size.value < 0)
        refuse("describes no tensor");
      if (size.value > 1 && stride.value != elements)
        refuse("describes a tensor that is not contiguous, which state_dict() of a model is");
      if (size.value > 0 && elements > most / size.value) refuse("describes more than its storage");
      elements *= size.value;
      t.shape.insert(t.shape.begin(), size.value);
    }
    if (t.value < 0 || t.value > most - elements) refuse("describes more than its storage");
    push(std::move(t));
  }

  const Bytes bytes_;
  const std::string& where_;
  size_t at_ = 0;
  std::vector<Node> nodes_;
  std::vector<uint32_t> stack_;
  std::map<uint32_t, uint32_t> memo_;
};

using StorageData = std::map<std::string_view, Bytes>;

std::vector<TensorView> views(const Pickle& pickle, uint32_t root, const StorageData& data,
                              const std::string& where) {
  const auto refuse = [&](std::string_view name, const std::string& why) {
    throw Error(
        Errc::invalid_argument, "torch",
        fmt::format("{}: \"{:.200}\" {}; save the model again as safetensors", where, name, why));
  };
  const Node& all = pickle[root];
  if (all.kind != Node::dictionary) refuse("what it holds", "is no dictionary of tensors");
  std::map<std::string_view, TensorView>
      found;  // of a name that occurs twice the last, as in Python
  for (size_t i = 0; i < all.items.size(); i += 2) {
    const Node &key = pickle[all.items[i]], &value = pickle[all.items[i + 1]];
    if (key.kind != Node::text) refuse("a key", "is no text");
    if (value.kind != Node::tensor) refuse(key.string, "is no tensor");
    const Node& storage = pickle[value.items[0]];
    const size_t each = safetensors_element_bytes(storage.type);
    const auto bytes = data.find(storage.string);
    if (bytes == data.end()) refuse(key.string, "has no data in the file");
    if (static_cast<uint64_t>(storage.value) > bytes->second.size() / each)
      refuse(key.string, fmt::format("has {} bytes of data and needs {} of {} bytes",
                                     bytes->second.size(), storage.value, each));
    TensorView t{.name = std::string(key.string),
                 .dtype = std::string(storage.type),
                 .shape = value.shape,
                 .data = bytes->second.data() + static_cast<size_t>(value.value) * each};
    t.bytes = each;
    for (const int64_t size : value.shape) t.bytes *= static_cast<size_t>(size);
    found[key.string] = std::move(t);
  }
  std::vector<TensorView> out;
  for (auto& [name, view] : found) out.push_back(std::move(view));
  return out;
}

// Before PyTorch 1.6: pickles of a magic number, a version, the machine, the dictionary and the list of
// its storages, then each of these with the number of its elements before it.
std::vector<TensorView> parse_old(Bytes file, const std::string& where) {
  Pickle pickle(file, where);
  for (int skipped = 0; skipped < 3; ++skipped) pickle.run();
  const uint32_t root = pickle.run();
  const Node keys = pickle[pickle.run()];
  std::map<std::string_view, const Node*> storages;
  const Node& all = pickle[root];
  for (size_t i = 1; all.kind == Node::dictionary && i < all.items.size(); i += 2) {
    const Node& value = pickle[all.items[i]];
    if (value.kind != Node::tensor) continue;
    const Node& storage = pickle[value.items[0]];
    storages[storage.string] = &storage;
  }
  StorageData data;
  size_t at = pickle.at();
  for (const uint32_t k : keys.items) {
    const std::string_view key = pickle[k].string;
    const auto storage = storages.find(key);
    int64_t count = -1;
    if (file.size() - at >= sizeof count) std::memcpy(&count, file.data() + at, sizeof count);
    at += sizeof count;
    const bool known = storage != storages.end() && storage->second->value == count && count >= 0;
    const size_t each = known ? safetensors_element_bytes(storage->second->type) : 1;
    if (!known || at > file.size() || static_cast<uint64_t>(count) > (file.size() - at) / each) {
      throw Error(
          Errc::invalid_argument, "torch",
          fmt::format("{}: the data of storage \"{:.40}\" is not whole; copy the file again", where,
                      key));
    }
    data[key] = file.subspan(at, static_cast<size_t>(count) * each);
    at += static_cast<size_t>(count) * each;
  }
  return views(pickle, root, data, where);
}

}  // namespace

std::vector<TensorView> parse_torch_file(Bytes file, const std::string& where) {
  if (!is_zip(file)) return parse_old(file, where);
  StorageData data;
  const Bytes* code = nullptr;
  const std::vector<ZipEntry> entries = zip_entries(file, where);
  for (const ZipEntry& e : entries) {
    const size_t folder = e.name.find('/');
    const std::string_view name = e.name.substr(folder == std::string_view::npos ? 0 : folder + 1);
    if (name == "data.pkl") code = &e.data;
    if (name.starts_with("data/")) data[name.substr(5)] = e.data;
  }
  if (code == nullptr) {
    throw Error(
        Errc::invalid_argument, "torch",
        fmt::format("{}: it is a zip archive without data.pkl, so not of torch.save(); give "
                    "the weights of a model",
                    where));
  }
  Pickle pickle(*code, where);
  const uint32_t root = pickle.run();
  return views(pickle, root, data, where);
}

}  // namespace saturate::model
