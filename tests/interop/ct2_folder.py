# SPDX-License-Identifier: Apache-2.0
"""Converts a model folder with CTranslate2's own loaders, without PyTorch.

Its converter builds the model with transformers and PyTorch only to read arrays from it by attribute. Those arrays are in
model.safetensors under the same names, so here the loaders get a tree of NumPy arrays instead. What decides the result (which
rows are dropped, where the decoder starts, which tables are scaled) is the loaders' code.
"""
import json
import math
import types

import ctranslate2
import numpy
import transformers
from ctranslate2.converters import transformers as converters
from safetensors.numpy import load_file


def sinusoids(positions, width):
    """The table of transformers' Marian and Pegasus: sines, then cosines."""
    angles = numpy.arange(positions)[:, None] / numpy.power(10000, 2 * numpy.arange(width // 2) / width)[None]
    return numpy.concatenate([numpy.sin(angles), numpy.cos(angles)], axis=1).astype(numpy.float32)


class Module:
    """Attributes by the dotted names of a file; numbers are places in a list."""

    def put(self, name, value):
        head, _, rest = name.partition(".")
        if not rest:
            setattr(self, head, value)
            return
        child = getattr(self, head, None)
        if child is None:
            child = Module()
            setattr(self, head, child)
        child.put(rest, value)

    def __iter__(self):  # module lists
        return (value for _, value in sorted((int(n), v) for n, v in vars(self).items() if n.isdigit()))


def read_model(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    tensors = load_file(f"{folder}/model.safetensors")
    model = Module()
    for name, values in tensors.items():
        if name != "final_logits_bias":
            model.put(name, values)
    if tensors["final_logits_bias"].any():
        raise ValueError(f"{folder}: final_logits_bias is not zero")
    model.config = config
    for side in (model.model.encoder, model.model.decoder):
        if hasattr(model.model, "shared"):
            side.embed_tokens = model.model.shared
        side.config = config
        side.embed_positions = types.SimpleNamespace(weight=sinusoids(config.max_position_embeddings, config.d_model))
    if not hasattr(model, "lm_head"):
        model.lm_head = types.SimpleNamespace(weight=model.model.decoder.embed_tokens.weight)
    return model


def convert(folder, out, tokenizer, quantization=None):
    """Writes CTranslate2's model of `folder` to `out`, as ct2-transformers-converter does."""
    try:
        import torch  # noqa: F401
    except ImportError:
        model = read_model(folder)
        converters.transformers = types.SimpleNamespace(Conv1D=())
        spec = converters._MODEL_LOADERS[type(model.config).__name__](model, tokenizer)
        spec.validate()
        spec.optimize(quantization=quantization)
        import os
        os.makedirs(out)
        spec.save(out)
        return
    ctranslate2.converters.TransformersConverter(folder).convert(out, quantization=quantization)
