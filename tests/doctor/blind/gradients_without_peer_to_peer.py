# SPDX-License-Identifier: Apache-2.0
"""github.com/huggingface/transformers/issues/9371 (table also in #9824).

Two GPUs finish my language-model run no sooner than one does; with one kind of parallel training they are even
slower, although both cards show full load.

Cause: all gradients cross a slow path between the GPUs at every step, here by way of host memory, and there is too
little computing in a step to hide it.
Line: gradients_without_peer_to_peer.py:step, the all-reduce inside loss.backward().
Remedy: the direct link between the GPUs (`fixed` leaves NCCL_P2P_DISABLE alone).

Run: torchrun --nproc-per-node 2 gradients_without_peer_to_peer.py [variant] (with --small also without it).
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import blind

RANKS = 2


def join(folder):
    """Rank in the group; alone, without torchrun, the group has one member."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
    return dist.get_rank()


def main():
    loop = blind.Loop("gradients_without_peer_to_peer", "network", steps=300)
    if loop.planted:
        os.environ["NCCL_P2P_DISABLE"] = "1"  # a line left over from a machine whose peer access hung
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = loop.device()
    with tempfile.TemporaryDirectory() as folder:
        if join(folder):
            sys.stdout = open(os.devnull, "w")  # one line in all, from rank 0
        torch.manual_seed(dist.get_rank())
        width, layers = loop.size(2048, 16), loop.size(16, 2)
        # Healthy has three times the batch, behind which the exchange disappears.
        batch = loop.size(49152 if loop.variant == "healthy" else 16384, 8)
        model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU())]).to(device)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(batch, width, device=device)
        y = torch.randn(batch, width, device=device)

        def step(i):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                predicted = model(x)
            loss = F.mse_loss(predicted.float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        loop.run(step, blind.wait_for(device))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
