# SPDX-License-Identifier: Apache-2.0
"""github.com/deepchem/deepchem/issues/458.

Training is dominated by something that is not the model: with a small data set an epoch is over quickly, and then the
program sits there for about as long again.

Cause: the whole model and its optimizer are saved after each epoch, however short the epoch is.
Line: checkpoint_after_every_epoch.py:save_checkpoint.
Remedy: `fixed` saves after every tenth epoch.
"""
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


def save_checkpoint(model, optimizer, epoch, folder):
    path = os.path.join(folder, "last.pt")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
    os.replace(path + ".new", path)


def main():
    loop = blind.Loop("checkpoint_after_every_epoch", "checkpoint", steps=800)
    device = loop.device()
    torch.manual_seed(0)
    width, layers, batch = loop.size(4096, 16), loop.size(4, 2), loop.size(8192, 8)
    epoch_steps = loop.size(80, 1)
    # Healthy: the same training, saved by nobody.
    every = {"planted": 1, "fixed": 10, "healthy": None}[loop.variant]
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU())],
                          nn.Linear(width, width)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = torch.randn(4, batch, width, device=device)
    y = torch.randn(batch, width, device=device)
    wait = blind.wait_for(device)

    with tempfile.TemporaryDirectory() as folder:
        def step(i):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = F.mse_loss(model(x[i % 4]).float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            epoch, last = divmod(i + 1, epoch_steps)
            if last or every is None or epoch % every:
                loop.planted_ms.append(0.0)
                return
            wait()
            begin = time.perf_counter()
            save_checkpoint(model, optimizer, epoch, folder)
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))

        loop.run(step, wait)


if __name__ == "__main__":
    main()
