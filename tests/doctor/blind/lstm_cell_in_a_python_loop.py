# SPDX-License-Identifier: Apache-2.0
"""https://github.com/openxla/xprof/issues/8

A recurrent network leaves most of the GPU unused; the profiler puts the larger part of the step down to launching
kernels, and this part grows with the length of the sequences.

Cause: the recurrence is written as a loop over a cell, so each time step launches its own few small kernels.
Line: lstm_cell_in_a_python_loop.py:LoopLSTM.forward
Remedy: `nn.LSTM`, which hands the whole sequence to cuDNN.
"""
import torch
from torch import nn

import blind


class LoopLSTM(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)

    def forward(self, x):
        """x: (time, batch, inputs)."""
        state, outputs = None, []
        for frame in x:
            state = self.cell(frame, state)
            outputs.append(state[0])
        return torch.stack(outputs), state


class Recogniser(nn.Module):
    def __init__(self, inputs, hidden, classes, loop_over_time):
        super().__init__()
        self.recurrent = LoopLSTM(inputs, hidden) if loop_over_time else nn.LSTM(inputs, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.recurrent(x)[0])


def main():
    loop = blind.Loop("lstm_cell_in_a_python_loop", "launch", steps=350)
    device = loop.device()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    length, inputs, hidden = loop.size(200, 6), loop.size(128, 8), loop.size(512, 16)
    batch = loop.size(1024 if loop.variant == "healthy" else 256, 4)
    classes = loop.size(2048, 10)
    model = Recogniser(inputs, hidden, classes, loop.planted).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(4, length, batch, inputs, generator=generator).to(device)
    labels = torch.randint(0, classes, (4, length, batch), generator=generator).to(device)

    def step(i):
        logits = model(frames[i % 4])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[i % 4].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
