# SPDX-License-Identifier: Apache-2.0
from types import ModuleType
from typing import TypedDict

__version__: str

class BuildInfo(TypedDict):
    version: str
    cuda: bool
    cuda_architectures: str
    gpus: int

def core() -> ModuleType: ...
def build_info() -> BuildInfo: ...
