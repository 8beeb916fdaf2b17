# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Project-MONAI/MONAI/issues/6427 (also Project-MONAI/MONAI#9071 and #6628)

A scan is segmented window by window. To be on the safe side with memory, what has been predicted is kept on the CPU
until it is put together; a volume then takes many times as long, and larger batches of windows change nothing.

Cause: the scores of all organs, for all voxels of each window, are copied to pageable memory of the host, and back
again when the windows are laid over each other; the GPU waits meanwhile.
Line: windows_parked_on_the_host.py:segment
Remedy: the scores stay on the GPU, which has the room; only the chosen labels are copied.
Trap: more windows in one call bring as many more bytes.
"""
import torch
from torch import nn

import blind
import training


class Segmenter(nn.Module):
    """Cubes of voxels become tokens; each voxel gets a score for each organ."""

    def __init__(self, cube, width, layers, organs):
        super().__init__()
        self.cube, self.organs = cube, organs
        self.enter = nn.Linear(cube**3, width, bias=False)
        self.body = training.WideNetwork(width, width, width, groups=layers)
        self.leave = nn.Linear(width, organs * cube**3, bias=False)

    def forward(self, window):
        c, n = self.cube, window.shape[-1] // self.cube
        cubes = window.view(n, c, n, c, n, c).permute(0, 2, 4, 1, 3, 5).reshape(n**3, c**3)
        scores = self.leave(self.body(self.enter(cubes))).view(n, n, n, self.organs, c, c, c)
        return scores.permute(3, 0, 4, 1, 5, 2, 6).reshape(self.organs, *window.shape)


def segment(model, volume, window, organs, where):
    places = range(0, volume.shape[-1] - window + 1, window // 2)
    parts = []
    for at in places:
        parts.append(model(volume[..., at:at + window].contiguous()).to(where))
    scores = torch.zeros(organs, *volume.shape, dtype=volume.dtype, device=volume.device)
    for at, part in zip(places, parts):
        scores[..., at:at + window] += part.to(volume.device)
    return scores.argmax(dim=0).to(torch.uint8).cpu()


@torch.no_grad()
def main():
    loop = blind.Loop("windows_parked_on_the_host", "copy", steps=150, warm_up=10)
    device = loop.device()
    if loop.variant == "healthy":
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    window, length, organs = loop.size(96, 8), loop.size(192, 16), loop.size(8, 2)
    with torch.device(device):
        model = Segmenter(loop.size(8, 4), loop.size(2560, 16), loop.size(20, 1), organs).to(torch.bfloat16)
        scans = torch.randn(2, window, window, length).to(torch.bfloat16)
    where = torch.device("cpu") if loop.planted else scans.device
    found = []

    def step(i):
        found[:] = [segment(model, scans[i % len(scans)], window, organs, where)]

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
