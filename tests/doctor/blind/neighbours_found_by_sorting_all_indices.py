# SPDX-License-Identifier: Apache-2.0
"""https://github.com/yanx27/Pointnet_Pointnet2_pytorch/issues/50
(also issues/209 there, Pointcept/PointTransformerV2#31)

The network for point clouds is written in plain PyTorch. With more points in a cloud it becomes far slower than the
version with kernels of its own; most say that drawing the farthest points is to blame.

Cause: to find the first few points in a ball, the indices of all points are sorted for each centre, as 64-bit integers,
though only the first 32 of them are kept.
Line: neighbours_found_by_sorting_all_indices.py:points_in_ball
Remedy: the smallest 32 are selected instead, of 32-bit indices.
Trap: centres are drawn at random here, as recommended; the slow part is not there.
"""
import torch
from torch import nn

import blind
import training

RADIUS = 0.3


def squared_distances(centres, points):
    return torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist").square_()


def points_in_ball(centres, points, few):
    """Indices of the first `few` points within the radius of each centre; the first one again where there are fewer."""
    clouds, count, _ = points.shape
    found = torch.arange(count, device=points.device).expand(clouds, centres.shape[1], count)
    found = found.masked_fill(squared_distances(centres, points) > RADIUS**2, count)
    found = found.sort(dim=-1)[0][:, :, :few]
    return torch.where(found == count, found[:, :, :1], found)


def points_in_ball_selected(centres, points, few):
    clouds, count, _ = points.shape
    found = torch.arange(count, device=points.device, dtype=torch.int32).expand(clouds, centres.shape[1], count)
    found = found.masked_fill(squared_distances(centres, points) > RADIUS**2, count)
    found = found.topk(few, dim=-1, largest=False, sorted=True)[0]
    return torch.where(found == count, found[:, :, :1], found).long()


class SetAbstraction(nn.Module):
    """What a shared network makes of the neighbourhood of each centre, the largest value of each channel."""

    def __init__(self, width, classes, few, find):
        super().__init__()
        self.few, self.find = few, find
        self.body = training.WideNetwork(3, width, width)
        self.leave = nn.Linear(width, classes)

    def forward(self, points, centres):
        found = self.find(centres, points, self.few)
        clouds = torch.arange(len(points), device=points.device)[:, None, None]
        near = points[clouds, found] - centres[:, :, None]
        features = self.body(near.to(self.leave.weight.dtype)).amax(dim=2)
        return self.leave(features.amax(dim=1))


def main():
    loop = blind.Loop("neighbours_found_by_sorting_all_indices", "memory")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    clouds, count, centres, few = loop.size(8, 2), loop.size(8192, 64), loop.size(512, 8), loop.size(32, 4)
    find = points_in_ball if loop.planted else points_in_ball_selected
    with torch.device(device):
        model = SetAbstraction(loop.size(1024, 16), 40, few, find).to(torch.bfloat16)
        batches = [(torch.rand(clouds, count, 3), torch.randint(0, 40, (clouds,))) for _ in range(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(i):
        points, truth = batches[i % len(batches)]
        drawn = torch.randint(0, count, (centres,), device=device)
        loss = nn.functional.cross_entropy(model(points, points[:, drawn]).float(), truth)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
