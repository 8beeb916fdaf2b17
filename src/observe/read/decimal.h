// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string_view>

namespace saturate::observe {

// "1680000000123456.789" to 1680000000123456789: exact to the nanosecond, further digits are cut
// off. False for what is no decimal number or beyond +-4e18 ns; `*ns` is then untouched.
bool parse_microseconds(std::string_view text, int64_t* ns);

}  // namespace saturate::observe
