# SPDX-License-Identifier: Apache-2.0
"""https://github.com/openmpf/openmpf/issues/563 (measured in ggml-org/llama.cpp#26487 and Neroued/ninfer#301)

One core of the processor is at 100% all the time although everything is computed on the GPU. So the processor must be
what limits us.

Cause: none. At the end of each step the host waits for the loss, and by default it waits by asking again and again;
the GPU is busy all that time.
Line: core_at_full_load_while_waiting.py:step, its call of loss.item()
Remedy: there is none to find; `fixed` does the obvious thing, it lets the host sleep until the step is done.
Trap: the load of the core goes down, the speed stays what it is.
"""
import torch

import blind
import training


def main():
    loop = blind.Loop("core_at_full_load_while_waiting", "none", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    rows, width = loop.size(16384, 16), loop.size(8192, 16)
    model, optimizer = training.make_wide(width, width, device)
    x = torch.randn(rows, width, device=device).to(torch.bfloat16)
    sleeps = loop.variant == "fixed" and device.type == "cuda"
    done = torch.cuda.Event(blocking=True) if sleeps else None
    losses = []

    def step(_):
        loss = model(x).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if sleeps:
            done.record()
            done.synchronize()
        losses.append(loss.item())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
