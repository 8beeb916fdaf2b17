// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace saturate::train {

extern const char kReportStyle[];   // CSS, light and dark
extern const char kReportScript[];  // JavaScript: reads values off the charts under the pointer

}  // namespace saturate::train
