# SPDX-License-Identifier: Apache-2.0
"""Saturate for Python, on the CPU and on NVIDIA GPUs: models that translate and continue texts, and their kernels.

``load`` opens a model; ``Model.translate``, ``Model.generate`` and ``Model.score`` use it (also streamed and for asyncio), without
PyTorch.

``attention``, ``conv2d`` and ``matmul`` take PyTorch tensors (with gradients, ``torch.compile`` and CUDA graphs) or
any arrays that speak DLPack, such as NumPy's (forward only).
"""
from saturate._attention import attention
from saturate._build import __version__, build_info
from saturate._conv2d import conv2d
from saturate._matmul import matmul
from saturate._models import Generation, Model, Score, TextStream, Translation, load
from saturate._tuned import use_tuned

__all__ = [
    "Generation",
    "Model",
    "Score",
    "TextStream",
    "Translation",
    "__version__",
    "attention",
    "build_info",
    "conv2d",
    "load",
    "matmul",
    "use_tuned",
]
