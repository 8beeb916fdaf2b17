# SPDX-License-Identifier: Apache-2.0
"""The small models that the planted programs train."""
import torch


def perceptron(width=4096, layers=4, dtype=torch.bfloat16):
    """Linear layers with ReLU between them: nearly all of its time is matrix products."""
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width, bias=False), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1]).to("cuda", dtype)


class Trainer:
    """Mean-square training of a model with plain SGD in one fused kernel a group of tensors."""

    def __init__(self, model, rate=1e-3):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, fused=True)

    def __call__(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(batch).float().square().mean()
        loss.backward()
        self.optimizer.step()
        return loss
