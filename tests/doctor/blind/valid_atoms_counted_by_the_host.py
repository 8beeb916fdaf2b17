# SPDX-License-Identifier: Apache-2.0
"""https://github.com/facebookresearch/fairchem/pull/2203

Training on many tasks at once leaves the GPU without work in the middle of each step, after the model and before the
backward pass, the more so the more tasks there are; their losses are a few numbers each.

Cause: the loss of each task picks its valid rows by a mask, counts them on the host and asks whether all are finite:
three questions to the GPU for each task, so the queue is empty all the time that small kernels are launched.
Line: valid_atoms_counted_by_the_host.py:loss_of_picked
Remedy: masked sums and counts that stay on the GPU; whether all was finite is asked after every hundred steps.
"""
import torch
from torch import nn

import blind
import training


def loss_of_picked(predicted, target, valid, structure, structures):
    """Mean error of the valid atoms, those of a structure averaged first; no loss where it is not finite."""
    rows = torch.nonzero(valid).squeeze(1)
    if rows.numel() == 0:
        return predicted.sum() * 0.0
    error = (predicted[rows] - target[rows]).abs()
    of = structure[valid]
    sums = torch.zeros(structures, device=error.device).index_add_(0, of, error)
    counts = torch.zeros(structures, device=error.device).index_add_(0, of, torch.ones_like(error))
    if not torch.isfinite(error).all():
        return predicted.sum() * 0.0
    return (sums / counts.clamp(min=1)).sum() / (counts > 0).sum()


def loss_of_masked(predicted, target, valid, structure, structures):
    """The same without a question."""
    weight = valid.float()
    error = torch.nan_to_num((predicted - target).abs()) * weight
    sums = torch.zeros(structures, device=error.device).index_add_(0, structure, error)
    counts = torch.zeros(structures, device=error.device).index_add_(0, structure, weight)
    return (sums / counts.clamp(min=1)).sum() / (counts > 0).sum().clamp(min=1)


def main():
    loop = blind.Loop("valid_atoms_counted_by_the_host", "sync", steps=420)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 250)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    tasks, atoms, structures = loop.size(24, 3), loop.size(8192, 32), loop.size(256, 4)
    width = loop.size(4096, 16)
    with torch.device(device):
        body, _ = training.make_model(loop.size(7, 1), width, device)
        model = nn.Sequential(body, nn.Linear(width, tasks)).to(torch.bfloat16)
        x = torch.randn(atoms, width).to(torch.bfloat16)
        targets = torch.randn(tasks, atoms)
        masks = torch.rand(tasks, atoms) < 0.3
        structure = torch.randint(0, structures, (atoms,)).sort()[0]
        finite = torch.ones((), dtype=torch.bool)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def work(loss_of):
        predicted = model(x).float().t()
        losses = [loss_of(p, t, m, structure, structures) for p, t, m in zip(predicted, targets, masks)]
        loss = torch.stack(losses).sum()
        finite.logical_and_(torch.isfinite(loss.detach()))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    span = training.GpuSpan(loop, device)
    blind.take_gpu()
    span.due = span.queued(lambda: work(loss_of_masked))

    def step(i):
        span.begin()
        work(loss_of_picked if loop.planted else loss_of_masked)
        span.end()
        if i % 100 == 99:
            assert finite

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
