// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace saturate::observe {

extern const char* const kTrialPython;  // sitecustomize.py

}  // namespace saturate::observe
