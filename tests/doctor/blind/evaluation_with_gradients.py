# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/13658

Evaluation computes a forward pass only, so it ought to be far quicker than training is, yet each batch takes longer
than expected. A colleague saw that torch.no_grad() is missing and takes that for the reason.

Cause: none. The GPU computes large products all the time; keeping what a backward pass would need costs memory only.
Line: evaluation_with_gradients.py:evaluate
Remedy: there is none to find; `fixed` does the obvious thing and evaluates without gradients.
Trap: the same kernels run in either case; what is saved is memory, not time (as the developers say in the thread).
"""
import contextlib
import functools

import torch
from torch import nn

import blind
import training


def main():
    loop = blind.Loop("evaluation_with_gradients", "none", steps=200)
    device = loop.device()
    healthy = loop.variant == "healthy"
    inputs, rows = loop.size(8192, 16), loop.size(16384, 16)
    model, _ = training.make_wide(inputs, inputs, device, groups=2)
    with torch.device(device):
        held_out = torch.randn(2, rows, inputs).to(torch.bfloat16)
        labels = torch.randint(0, 64, (rows,))
        total = torch.zeros(())
    model.eval()
    gradients = contextlib.nullcontext if loop.planted else torch.no_grad

    def evaluate(x):
        with gradients():
            loss = nn.functional.cross_entropy(model(x).float(), labels)
        total.add_(loss.detach())

    if healthy:
        steps = [training.recorded(functools.partial(evaluate, x), device) for x in held_out]
    else:
        steps = [functools.partial(evaluate, x) for x in held_out]
    loop.run(lambda i: steps[i % 2](), blind.wait_for(device))


if __name__ == "__main__":
    main()
