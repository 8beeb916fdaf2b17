# SPDX-License-Identifier: Apache-2.0
"""https://github.com/johnma2006/mamba-minimal/issues/21

Training the state-space model from its plain implementation is much slower than training a transformer of that size,
which was to be the slower of the two.

Cause: the recurrence is a Python loop over the positions, a handful of tiny kernels for each of them and twice as many
in the backward pass, so the time is that of launching.
Line: recurrence_scanned_in_python.py:scan
Remedy: the step is recorded once as a CUDA graph and replayed; one kernel for the whole scan would be better still.
"""
import torch
from torch import nn

import blind
import training


def scan(decay, drive, readout):
    """h[t] = decay[t] h[t-1] + drive[t], y[t] = <h[t], readout[t]>; decay, drive: (time, batch, width, state)."""
    state, outputs = torch.zeros_like(drive[0]), []
    for a, b, c in zip(decay.unbind(), drive.unbind(), readout.unbind()):
        state = torch.addcmul(b, a, state)
        outputs.append((state * c[:, None, :]).sum(dim=2))
    return torch.stack(outputs)


class StateSpace(nn.Module):
    def __init__(self, width, state):
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.gates = nn.Linear(width, 2 * state + width, bias=False)
        self.rate = nn.Parameter(-torch.rand(width, state))
        self.outer = nn.Linear(width, width, bias=False)

    def forward(self, x):
        """x: (time, batch, width)."""
        u = self.inner(x)
        to_state, readout, speed = self.gates(u).float().split([self.rate.shape[1]] * 2 + [x.shape[2]], dim=2)
        speed = nn.functional.softplus(speed)
        decay = torch.exp(speed[..., None] * self.rate)
        drive = (speed * u.float())[..., None] * to_state[:, :, None, :]
        return x + self.outer(scan(decay, drive, readout).to(x.dtype))


def main():
    loop = blind.Loop("recurrence_scanned_in_python", "launch", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    length, batch, width, state = loop.size(192, 4), loop.size(16, 2), loop.size(1024, 8), loop.size(16, 2)
    with torch.device(device):
        before, _ = training.make_model(loop.size(3, 1), loop.size(4096, 8), device)
        mixer = StateSpace(width, state).to(torch.bfloat16)
        mixer.rate.data = mixer.rate.data.float()
        x = torch.randn(length, batch, width).to(torch.bfloat16)
        wide = torch.randn(length * batch, loop.size(4096, 8)).to(torch.bfloat16)
    before.to(torch.bfloat16)
    optimizer = torch.optim.SGD([*before.parameters(), *mixer.parameters()], lr=1e-3)

    def work():
        loss = before(wide).float().square().mean() + mixer(x).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    work = work if loop.planted else training.recorded(work, device)
    loop.run(lambda i: work(), blind.wait_for(device))


if __name__ == "__main__":
    main()
