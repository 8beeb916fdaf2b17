# SPDX-License-Identifier: Apache-2.0
"""https://github.com/ourownstory/neural_prophet/pull/952

Since the move to a training framework, fitting the small forecasting model takes twice as long; the new progress bar
looks much nicer than the old one.

Cause: a thread draws the bar and its table of measures anew many times a second, in pure Python, and holds the
interpreter meanwhile, so the training loop cannot launch.
Line: progress_bar_thread_redraws.py:cell, called by render (in the drawing thread)
Remedy: no drawing thread; one plain line every 50 steps.

The program leaves by os._exit once its result is printed, as launchers do that shall not wait for such threads.
"""
import os
import re
import sys
import threading
import time
import unicodedata

import torch
from torch import nn

import blind


class LiveTable:
    """A table with colours that a thread redraws, in the way of the libraries for terminals."""

    def __init__(self, rows, pause):
        self.rows, self.pause, self.values, self.frames = rows, pause, {}, 0
        self.screen = open(os.devnull, "w", encoding="utf-8")
        self.thread = threading.Thread(target=self.refresh, daemon=True)

    def cell(self, text, width, hue):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        cells = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in plain)
        return f"\x1b[38;5;{hue}m" + plain[:width] + " " * (width - cells) + "\x1b[0m"

    def render(self):
        lines = []
        for row in range(self.rows):
            cells = [self.cell(f"{name} {value:.4f} {'#' * int(40 * ((value * (row + 1)) % 1.0))}", 56, 16 + row % 200)
                     for name, value in sorted(self.values.items())]
            lines.append("|".join(cells))
        return "\n".join(lines)

    def refresh(self):
        while True:
            print("\x1b[H" + self.render(), file=self.screen, flush=True)
            self.frames += 1
            time.sleep(self.pause)


class Forecaster(nn.Module):
    """Trend, seasons and regressors: many small networks whose results are added up."""

    def __init__(self, parts, inputs, hidden):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden),
                                                 nn.SiLU(), nn.Linear(hidden, 1)) for _ in range(parts))

    def forward(self, x):
        return sum(part(x) for part in self.parts)


def main():
    loop = blind.Loop("progress_bar_thread_redraws", "lock", steps=350)
    device = loop.device()
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows, inputs = loop.size(49152 if loop.variant == "healthy" else 16384, 8), loop.size(256, 4)
    model = Forecaster(loop.size(32, 3), inputs, loop.size(1024, 8)).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(rows, inputs, device=device, dtype=dtype)
    y = torch.randn(rows, 1, device=device, dtype=dtype)
    table = LiveTable(loop.size(300, 4), 0.015) if loop.planted else None
    shown = {}

    def train(i):
        loss = (model(x) - y).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if i % 10 == 9:
            value = loss.item()
            shown.update((f"{name}/{kind}", value) for name in ("loss", "mae", "rmse") for kind in ("train", "best"))
            if i % 50 == 49 and not loop.planted:
                print(f"step {i}: loss {value:.4f}", file=sys.stderr)

    for i in range(20):
        train(i)
    wait = blind.wait_for(device)
    wait()
    begin = time.perf_counter()
    for i in range(20):
        train(i)
    wait()
    alone_ms = 1e3 * (time.perf_counter() - begin) / 20
    if table:
        table.values = shown
        table.thread.start()
    latest = time.perf_counter()

    def step(i):
        nonlocal latest
        train(i)
        if i % 10 == 9:  # the loss was read: the GPU is as far as the host
            now = time.perf_counter()
            loop.planted_ms.append(max(0.0, 1e3 * (now - latest) / 10 - alone_ms))
            latest = now

    loop.run(step, wait)
    os._exit(0)


if __name__ == "__main__":
    main()
