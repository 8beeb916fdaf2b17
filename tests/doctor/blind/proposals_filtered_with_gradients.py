# SPDX-License-Identifier: Apache-2.0
"""github.com/facebookresearch/maskrcnn-benchmark/issues/976.

Time for a step and memory in use both rise while the detector trains; after some hours it is much slower than at the
start and close to running out of memory.

Cause: the proposals are scored and filtered with gradients enabled, so all that the filter computes is kept and goes
through the backward pass; as the detector learns, there are more proposals.
Line: proposals_filtered_with_gradients.py:filter_proposals.
Remedy: no_grad around the filter (the number of proposals still rises, as one user of the thread found).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


def filter_proposals(scorer, proposals, keep):
    """The `keep` best proposals and their scores."""
    scores = scorer(proposals).squeeze(-1).float()
    best, index = scores.topk(keep)
    return proposals[index], torch.sigmoid(best)


def main():
    loop = blind.Loop("proposals_filtered_with_gradients", "growth", steps=700)
    device = loop.device()
    torch.manual_seed(0)
    width, keep = loop.size(1024, 16), loop.size(16384, 8)
    first, more, most = loop.size(32768, 16), loop.size(512, 2), loop.size(262_144, 24)
    scorer = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.GELU(),
                           nn.Linear(width, 1)).to(device, torch.bfloat16)
    head = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 4 * width), nn.GELU(),
                         nn.Linear(4 * width, 4)).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD([*scorer.parameters(), *head.parameters()], lr=1e-3)
    features = torch.randn(most, width, device=device, dtype=torch.bfloat16)
    boxes = torch.randn(keep, 4, device=device)

    def step(i):
        # Healthy has the filter without gradients and the same number of proposals at each step.
        count = first if loop.variant == "healthy" else min(first + more * i, most)
        with torch.set_grad_enabled(loop.planted):
            kept, scores = filter_proposals(scorer, features[:count], keep)
        error = F.smooth_l1_loss(head(kept).float(), boxes, reduction="none").mean(1)
        loss = (scores * error).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
