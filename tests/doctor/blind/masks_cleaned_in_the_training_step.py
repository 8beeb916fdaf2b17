# SPDX-License-Identifier: Apache-2.0
"""https://github.com/Lightning-AI/pytorch-lightning/issues/3050

I want a score of my own at the end of each training step: the predicted masks are cleaned of small parts before they
are compared. With it the training is very slow.

Cause: the masks are copied to the host in each training step, where NumPy and Python look for the connected parts of
one after the other, and the backward pass is launched only after that.
Line: masks_cleaned_in_the_training_step.py:cleaned
Remedy: the score of every hundredth step.
"""
import logging
import warnings

import numpy as np
import torch
from torch import nn

import blind
import training

PIXELS = 16  # of a patch, along each side


def cleaned(mask, least):
    """The mask without the connected parts of less than `least` pixels: runs of each row, joined with those above."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, begins = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    runs = list(zip(rows.tolist(), begins.tolist(), ends.tolist()))
    parent, above, below, row = list(range(len(runs))), [], [], -1

    def root(k):
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for k, (r, begin, end) in enumerate(runs):
        if r != row:
            above, below, row = (below if r == row + 1 else []), [], r
        for other in above:
            if runs[other][1] < end and begin < runs[other][2]:
                parent[root(other)] = root(k)
        below.append(k)
    sizes = [0] * len(runs)
    for k, (_, begin, end) in enumerate(runs):
        sizes[root(k)] += end - begin
    kept = np.zeros_like(mask)
    for k, (r, begin, end) in enumerate(runs):
        if sizes[root(k)] >= least:
            kept[r, begin:end] = True
    return kept


def score(masks, truths, least):
    """Dice of the cleaned masks, on average."""
    dice = []
    for mask, truth in zip(masks, truths):
        mask = cleaned(mask, least)
        dice.append(2 * (mask & truth).sum() / max(1, mask.sum() + truth.sum()))
    return float(np.mean(dice))


def make_truths(count, side):
    """Masks of some discs."""
    rng = np.random.default_rng(0)
    down, right = np.mgrid[:side, :side]
    truths = np.zeros((count, side, side), bool)
    for truth in truths:
        for y, x, radius in zip(*rng.integers(0, side, size=(2, 12)), rng.integers(2, side // 8 + 1, size=12)):
            truth |= (down - y) ** 2 + (right - x) ** 2 < radius**2
    return truths


def main():
    loop = blind.Loop("masks_cleaned_in_the_training_step", "host", steps=240)
    try:
        import lightning.pytorch as lightning
    except ImportError:
        try:
            import pytorch_lightning as lightning
        except ImportError:
            raise SystemExit(f"{loop.name}: needs Lightning (pip install lightning)")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 160)
    torch.manual_seed(0)
    images, side, width = loop.size(16, 2), loop.size(256, 32), loop.size(4096, 16)
    patches = images * (side // PIXELS) ** 2
    truths = make_truths(images, side)
    span = training.GpuSpan(loop, device)
    total = loop.warm_up + loop.steps

    class Segmenter(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            with torch.device(device):
                body, _ = training.make_model(loop.size(18, 1), width, device)
                layers = nn.Sequential(nn.Linear(3 * PIXELS**2, width), body, nn.Linear(width, PIXELS**2))
                pixels = torch.randn(patches, 3 * PIXELS**2).to(torch.bfloat16)
            self.layers = layers.to(torch.bfloat16)
            # How the truth lies in the rows of a batch: a row for each patch. The network starts close to it.
            rows = truths.reshape(images, side // PIXELS, PIXELS, side // PIXELS, PIXELS).transpose(0, 1, 3, 2, 4)
            truth = torch.from_numpy(rows.reshape(patches, PIXELS**2)).to(device)
            start = truth ^ (torch.rand(truth.shape, device=device) < 0.003)
            self.register_buffer("pixels", pixels)
            self.register_buffer("truth", truth.float())
            self.register_buffer("start", 6.0 * start.float() - 3)
            self.scores, self.every = [], 1 if loop.planted else 100

        def as_masks(self, logits):
            x = (logits.detach() > 0).view(images, side // PIXELS, side // PIXELS, PIXELS, PIXELS)
            return x.permute(0, 1, 3, 2, 4).reshape(images, side, side)

        def training_step(self, batch, index):
            logits = self.start + self.layers(self.pixels).float()
            loss = nn.functional.binary_cross_entropy_with_logits(logits, self.truth)
            masks = self.as_masks(logits)
            span.begin()
            if index % self.every == self.every - 1:
                self.scores.append(score(masks.cpu().numpy(), truths, 8))
            span.end()
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Wide(lightning.LightningModule):
        """Nothing to win: large products."""

        def __init__(self):
            super().__init__()
            rows, wide = loop.size(16384, 16), loop.size(8192, 16)
            self.network, _ = training.make_wide(wide, wide, device)
            self.register_buffer("x", torch.randn(rows, wide, device=device).to(torch.bfloat16))

        def training_step(self, batch, index):
            return self.network(self.x).float().square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Clock(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            loop.before(index, blind.wait_for(device))

        def on_train_end(self, trainer, module):
            loop.before(total, blind.wait_for(device))

    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu", devices=1, max_steps=total, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Clock()])
    numbers = torch.utils.data.DataLoader(range(total), collate_fn=list)
    trainer.fit(Wide() if loop.variant == "healthy" else Segmenter(), numbers)


if __name__ == "__main__":
    main()
