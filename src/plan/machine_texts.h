// SPDX-License-Identifier: Apache-2.0
// The machine files of examples/machines, which come with the program (cmake/embed.cmake).
#pragma once

namespace saturate::plan {

extern const char* const kMachineH200;
extern const char* const kMachineH200Ethernet;
extern const char* const kMachinePcieEthernet;

struct MachineText {
  const char* name;
  const char* text;
};
inline const MachineText kMachines[] = {{"h200", kMachineH200},
                                        {"h200-ethernet", kMachineH200Ethernet},
                                        {"pcie-ethernet", kMachinePcieEthernet}};

}  // namespace saturate::plan
