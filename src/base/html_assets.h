// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace saturate {

extern const char kPageStyle[];    // CSS, light and dark
extern const char kChartScript[];  // JavaScript: reads values off the charts under the pointer

}  // namespace saturate
