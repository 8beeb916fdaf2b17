# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Lightning-AI/pytorch-lightning/issues/6534 (also MIC-DKFZ/nnUNet#1630)

The tuning guide says that gradients should be set to None and not be filled with zeros. I would like to have that as
an option of the trainer, for the speed. (My epochs took 41.4 s before the change and 41.1 s after it.)

Cause: none. Filling the gradients and adding to them moves each of them four times through memory, a hundredth of what
the products with thousands of rows take.
Line: gradients_filled_with_zeros.py:step
Remedy: there is none to find; `fixed` does the obvious thing and sets the gradients to None.
Trap: what is saved is memory more than time (as a maintainer of the second project found).
"""
import torch

import blind
import training


def main():
    loop = blind.Loop("gradients_filled_with_zeros", "none", steps=120)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    rows, width = loop.size(32768, 16), loop.size(4096, 16)
    model, optimizer = training.make_wide(width, width, device, groups=2)
    generator = torch.Generator(device).manual_seed(1)
    batches = [torch.randn(rows, width, device=device, generator=generator).to(torch.bfloat16) for _ in range(2)]

    def step(i):
        optimizer.zero_grad(set_to_none=not loop.planted)
        loss = model(batches[i % 2]).float().square().mean()
        loss.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
