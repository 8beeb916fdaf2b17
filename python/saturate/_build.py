# SPDX-License-Identifier: Apache-2.0
"""The extension module, loaded at the first call, and what it was built with."""
import functools
import importlib

__version__ = "0.1.0"


@functools.lru_cache(maxsize=None)
def core():
    """``saturate._core``. Not loaded by ``import saturate``: PyTorch, where it is used, brings CUDA libraries of
    its own, and those must be in the process first."""
    try:
        return importlib.import_module("saturate._core")
    except ImportError as error:
        if not any(name in str(error) for name in ("libcudart", "libcublas", "libnccl")):
            raise
        raise ImportError(f"{error}: this build has GPU code and needs the libraries of CUDA 13; pip install 'saturate[cuda]' brings them, "
                          "and a build for the CPU (SATURATE_CUDA=OFF) needs none") from None


def build_info():
    """What this package was built with.

    Returns
    -------
    dict
        ``version``, ``cuda`` (whether it has GPU kernels), ``cuda_architectures`` and ``gpus`` (those
        that the driver offers now).

    Example
    -------
    >>> saturate.build_info()["version"]
    '0.1.0'
    """
    module = core()
    return {
        "version": module.version,
        "cuda": module.with_cuda,
        "cuda_architectures": module.cuda_architectures if module.with_cuda else "",
        "gpus": module.cuda_device_count(),
    }
