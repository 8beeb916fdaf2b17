# SPDX-License-Identifier: Apache-2.0
"""https://github.com/keitakurita/Better_LSTM_PyTorch/issues/4 (also pytorch/examples#248, mlverse/torch#461)

The recurrent model speaks frame by frame. Since its averaged weights are used, PyTorch warns that the weights do not
lie in one piece; somebody says that this costs memory only and may be ignored, but frames take longer than before.

Cause: each averaged weight lies in memory of its own; at every call, that is for every frame, all weights are copied
into one fresh block before the library reads them once.
Line: averaged_weights_scattered_for_the_lstm.py:Voice.forward (its call of the LSTM)
Remedy: flatten_parameters() is called once, after the averaged weights have been put in.
"""
import torch
from torch import nn

import blind
import training


class Voice(nn.Module):
    """The next frame of a sound, from the last one."""

    def __init__(self, bands, width, layers):
        super().__init__()
        self.enter, self.leave = nn.Linear(bands, width), nn.Linear(width, bands)
        self.memory = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, frame, state):
        hidden, state = self.memory(self.enter(frame), state)
        return torch.tanh(self.leave(hidden)), state


def use_average(model, average):
    """The averaged weights take the place of the trained ones."""
    for name, parameter in model.named_parameters():
        parameter.data = average[name]


def speak(model, frame, state, frames):
    spoken = []
    for _ in range(frames):
        frame, state = model(frame, state)
        spoken.append(frame)
    return torch.cat(spoken, dim=1), state


@torch.no_grad()
def main():
    loop = blind.Loop("averaged_weights_scattered_for_the_lstm", "memory")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    bands, width, layers = loop.size(128, 8), loop.size(4096, 16), loop.size(3, 2)
    voices, frames = loop.size(64, 2), loop.size(16, 3)
    kind = torch.float16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = Voice(bands, width, layers).to(kind).eval()
        frame = torch.randn(voices, 1, bands, dtype=kind)
        state = tuple(torch.zeros(layers, voices, width, dtype=kind) for _ in range(2))
    # the average that training has kept beside the weights
    average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    use_average(model, average)
    if not loop.planted:
        model.memory.flatten_parameters()

    def step(i):
        nonlocal frame, state
        spoken, state = speak(model, frame, state, frames)
        frame = spoken[:, -1:]

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
