// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "base/json.h"
#include "data/packer.h"

namespace saturate::data {

std::string PackerState::to_json() const {
  Json::Array items;
  for (const PackedItem& item : carried)
    items.push_back(Json::Array{item.epoch, item.index, item.first});
  return Json{{"batches", batches}, {"epoch", epoch}, {"position", position}, {"carried", items}}
      .dump();
}

PackerState PackerState::from_json(const std::string& text) {
  PackerState state;
  try {
    const Json json = parse_json(text, "state of the packer");
    JsonFields fields(json, "resume", "state of the packer");
    state.batches = fields.integer("batches");
    state.epoch = fields.integer("epoch");
    state.position = fields.integer("position");
    for (const Json& item : fields.list("carried")) {
      const int64_t *epoch = item[0].if_int(), *index = item[1].if_int(), *first = item[2].if_int();
      if (!epoch || !index || !first)
        fields.fail("carried", "lists of three whole numbers are needed");
      state.carried.push_back({*epoch, *index, *first});
    }
  } catch (const Error& e) {
    throw Error(Errc::invalid_argument, "resume",
                std::string("the saved position in the data cannot be read: ") + e.what() +
                    "; resume from another checkpoint");
  }
  return state;
}

}  // namespace saturate::data
