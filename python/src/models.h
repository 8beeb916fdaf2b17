// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

namespace saturate::python {

// The classes Model, Request and Mailbox: models that translate or continue texts.
void bind_models(nanobind::module_& m);

}  // namespace saturate::python
