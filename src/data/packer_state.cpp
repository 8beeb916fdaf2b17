// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/packer.h"

namespace saturate::data {

using Json = nlohmann::json;

std::string PackerState::to_json() const {
  Json items = Json::array();
  for (const PackedItem& item : carried) items.push_back({item.epoch, item.index, item.first});
  return Json{{"batches", batches}, {"epoch", epoch}, {"position", position}, {"carried", items}}
      .dump();
}

PackerState PackerState::from_json(const std::string& text) {
  PackerState state;
  try {
    const Json json = Json::parse(text);
    json.at("batches").get_to(state.batches);
    json.at("epoch").get_to(state.epoch);
    json.at("position").get_to(state.position);
    for (const Json& item : json.at("carried")) {
      PackedItem& carried = state.carried.emplace_back();
      item.at(0).get_to(carried.epoch);
      item.at(1).get_to(carried.index);
      item.at(2).get_to(carried.first);
    }
  } catch (const Json::exception& e) {
    throw Error(Errc::invalid_argument, "resume",
                std::string("the saved position in the data cannot be read: ") + e.what() +
                    "; resume from another checkpoint");
  }
  return state;
}

}  // namespace saturate::data
