# SPDX-License-Identifier: Apache-2.0
"""Attention, matrix products and convolutions of Saturate, on the CPU and on NVIDIA GPUs.

``attention``, ``conv2d`` and ``matmul`` take PyTorch tensors (with gradients, ``torch.compile`` and CUDA graphs) or
any arrays that speak DLPack, such as NumPy's (forward only).
"""
from saturate._attention import attention
from saturate._build import __version__, build_info
from saturate._conv2d import conv2d
from saturate._matmul import matmul
from saturate._tuned import use_tuned

__all__ = ["__version__", "attention", "build_info", "conv2d", "matmul", "use_tuned"]
