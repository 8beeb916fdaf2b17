# SPDX-License-Identifier: Apache-2.0
"""Tests run where they can: without PyTorch or transformers, or without a GPU, those that need them are skipped."""
import pytest

try:
    import torch
except ImportError:
    torch = None

DEVICES = ["cpu", "cuda"]


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")


def has_gpu():
    if torch is None or not torch.cuda.is_available():
        return False
    import saturate

    return saturate.build_info()["cuda"]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not has_gpu():
        pytest.skip("no GPU, or saturate was built without CUDA")
    return request.param
