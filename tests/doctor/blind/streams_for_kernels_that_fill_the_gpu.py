# SPDX-License-Identifier: Apache-2.0
"""github.com/mtazzari/galario/issues/60 (also pytorch/pytorch#25540)

The profiler shows the kernels of independent images one after the other, none at the same time: using streams, several
of them ought to run at once and the fit to become faster.

Cause: none. Each kernel fills the GPU by itself, so kernels side by side would only share it.
Line: streams_for_kernels_that_fill_the_gpu.py:misfit
Remedy: there is none to find; `fixed` does the obvious thing and gives each image a stream.
Trap: the streams bring nothing (the thread saw no change either); small images would be another matter.

The program leaves by os._exit once its result is printed, as its users' MPI launcher has it.
"""
import math
import os

import torch

import blind


def radial_profile(parameters, radius):
    """The brightness of a disc with a gap, on a grid."""
    width, gap, depth = parameters
    disc = torch.exp(-radius / width)
    return disc * (1 - depth * torch.exp(-((radius - gap) / 0.05) ** 2))


def shifted(visibility, u, v, move):
    phase = 2 * math.pi * (u * move[0] + v * move[1])
    return visibility * torch.complex(torch.cos(phase), torch.sin(phase))


def misfit(parameters, move, radius, u, v, observed):
    """How far the Fourier transform of the image is from what was observed."""
    image = radial_profile(parameters, radius)
    visibility = torch.fft.rfft2(image, norm="ortho")
    apart = shifted(visibility, u, v, move) - observed
    return torch.view_as_real(apart).square().mean()


class Fit:
    """Several discs with images of their own, independent of each other."""

    def __init__(self, discs, pixels, device, streams):
        axis = torch.linspace(-2, 2, pixels, device=device)
        self.radius = torch.sqrt(axis[:, None] ** 2 + axis[None, :] ** 2)
        self.u = torch.fft.fftfreq(pixels, device=device)[:, None]
        self.v = torch.fft.rfftfreq(pixels, device=device)[None, :]
        start = torch.tensor([0.5, 1.0, 0.3], device=device)
        self.observed = torch.fft.rfft2(radial_profile(start * 1.1, self.radius), norm="ortho")
        self.parameters = [start.clone() for _ in range(discs)]
        self.moves = torch.linspace(-3, 3, 2 * discs, device=device).view(discs, 2)
        self.streams = [torch.cuda.Stream() for _ in range(discs)] if streams else [None] * discs
        self.values = [None] * discs

    def improve(self, k):
        """One step of gradient descent for disc `k`."""
        given = self.parameters[k].requires_grad_(True)
        value = misfit(given, self.moves[k], self.radius, self.u, self.v, self.observed)
        slope, = torch.autograd.grad(value, given)
        self.parameters[k] = (given - 0.01 * slope).detach()
        self.values[k] = value.detach()

    def step(self):
        for k, stream in enumerate(self.streams):
            if stream is None:
                self.improve(k)
            else:
                with torch.cuda.stream(stream):
                    self.improve(k)


def main():
    loop = blind.Loop("streams_for_kernels_that_fill_the_gpu", "none", steps=250)
    device = loop.device()
    torch.manual_seed(0)
    pixels = loop.size(8192 if loop.variant == "healthy" else 6144, 32)
    fit = Fit(loop.size(6, 2), pixels, device, streams=device.type == "cuda" and loop.variant == "fixed")
    wait = blind.wait_for(device)
    wait()  # the streams do not wait for what was made on the default one
    loop.run(lambda i: fit.step(), wait)
    os._exit(0)


if __name__ == "__main__":
    main()
