# SPDX-License-Identifier: Apache-2.0
"""https://github.com/facebookresearch/detr/issues/562 (also ybarancan/STSU#11)

The .cpu() in the matching of predictions and objects is the bottleneck of my training: by the clock it takes longer
than the entire forward pass. Is there a way to use it that takes less time?

Cause: none worth the name. The forward pass has only been launched by then; what .cpu() takes is the time in which the
GPU computes it. The matching itself takes a fraction of a millisecond in a step of fifty.
Line: matching_blamed_on_the_copy.py:to_host
Remedy: there is none to find; `fixed` does the obvious thing, an asynchronous copy into page-locked memory.
Trap: the copy was never slow; the wait is the GPU's own work.
"""
import numpy as np
import torch
from torch import nn

import blind
import training


def match(costs):
    """For each object of each image the cheapest query that is still free: (images, objects) indices."""
    images, queries, objects = costs.shape
    chosen, every = np.empty((images, objects), np.int64), np.arange(images)
    for k in range(objects):
        chosen[:, k] = costs[:, :, k].argmin(axis=1)
        costs[every, chosen[:, k]] = np.inf
    return chosen


def main():
    loop = blind.Loop("matching_blamed_on_the_copy", "none", steps=140)
    device = loop.device()
    inputs, images, queries, objects = loop.size(8192, 16), loop.size(96, 2), loop.size(128, 8), 4
    model, optimizer = training.make_wide(inputs, inputs, device, groups=2)
    with torch.device(device):
        x = torch.randn(images * queries, inputs).to(torch.bfloat16)
        boxes = torch.rand(images, objects, 4)
    on_gpu = device.type == "cuda"
    pinned = torch.empty(images, queries, objects, pin_memory=on_gpu)

    def to_host(costs):
        if loop.planted or not on_gpu:
            return costs.cpu().numpy().copy()
        pinned.copy_(costs, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return pinned.numpy()

    def train(chosen=None):
        predicted = model(x)[:, :4].float().sigmoid().view(images, queries, 4)
        if chosen is None:
            costs = torch.cdist(predicted.detach(), boxes, p=1)
            chosen = torch.from_numpy(match(to_host(costs))).to(device)
        loss = nn.functional.l1_loss(predicted.gather(1, chosen[:, :, None].expand(-1, -1, 4)), boxes)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    if loop.variant == "healthy":  # the objects stay with the queries that they were given once
        fixed = torch.arange(objects, device=device).expand(images, objects).contiguous()
        step = training.recorded(lambda: train(fixed), device)
        return loop.run(lambda i: step(), blind.wait_for(device))
    loop.run(lambda i: train(), blind.wait_for(device))


if __name__ == "__main__":
    main()
