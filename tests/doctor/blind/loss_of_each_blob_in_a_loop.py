# SPDX-License-Identifier: Apache-2.0
"""https://github.com/neuronflow/blob_loss/pull/6 (also lorenmt/reco#11)

The loss that weighs all lesions alike makes each step much longer than a plain one, and the more so the larger the
batch and the more lesions there are in it, while the utilisation of the GPU falls.

Cause: for each image and each lesion in it all others are masked out and a loss is computed, one after the other: some
twenty tiny kernels for each lesion, which take longer to launch than to run.
Line: loss_of_each_blob_in_a_loop.py:loss_by_loop
Remedy: the sums of all lesions of the batch at once, with a mask for each of them.
"""
import torch
from torch import nn

import blind
import training

PIXELS = 16  # of a patch, along each side


def loss_by_loop(predicted, labels, blobs):
    """1 - Dice of each blob with all other blobs masked out, on average. predicted, labels: (images, pixels)."""
    losses = []
    for image, label in zip(predicted, labels):
        for blob in range(1, blobs + 1):
            mine = label == blob
            seen = image * (mine | (label == 0))
            both = (seen * mine).sum()
            losses.append(1 - (2 * both + 1) / (seen.square().sum() + mine.sum() + 1))
    return torch.stack(losses).mean()


def loss_at_once(predicted, labels, blobs):
    masks = (labels[:, None, :] == torch.arange(blobs + 1, device=labels.device)[None, :, None]).float()
    both = (masks * predicted[:, None]).sum(dim=2)
    squares = (masks * predicted.square()[:, None]).sum(dim=2)
    count = masks.sum(dim=2)
    dice = (2 * both[:, 1:] + 1) / (squares[:, 1:] + squares[:, :1] + count[:, 1:] + 1)
    return (1 - dice).mean()


def main():
    loop = blind.Loop("loss_of_each_blob_in_a_loop", "launch", steps=280)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    images, blobs, patches, width = loop.size(16, 2), loop.size(8, 2), loop.size(256, 4), loop.size(4096, 16)
    with torch.device(device):
        body, _ = training.make_model(loop.size(14, 1), width, device)
        model = nn.Sequential(body, nn.Linear(width, PIXELS**2)).to(torch.bfloat16)
        x = torch.randn(images * patches, width).to(torch.bfloat16)
        labels = torch.randint(0, blobs + 1, (images, patches * PIXELS**2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss_of = loss_by_loop if loop.planted else loss_at_once

    def step(i):
        predicted = model(x).view(images, patches * PIXELS**2).float().sigmoid()
        loss = loss_of(predicted, labels, blobs)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
