# SPDX-License-Identifier: Apache-2.0
"""github.com/jcjohnson/torch-rnn/issues/112.

Training gets to the iteration where the validation loss is due and seems to be stuck there, with one processor core
nearly full; after a long while it goes on.

Cause: validation runs one sample at a time and reads each loss back, so the GPU waits for the host at each sample.
Line: validation_one_sample_at_a_time.py:validate, the .item() in its loop.
Remedy: `fixed` validates in batches of 256 and reads the sum once.
"""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import blind


class CharModel(nn.Module):
    def __init__(self, letters, width, layers):
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.rnn = nn.GRU(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, letters)

    def loss(self, text, reduction="mean"):
        hidden, _ = self.rnn(self.embed(text[:, :-1]))
        return F.cross_entropy(self.head(hidden).flatten(0, 1).float(), text[:, 1:].flatten(), reduction=reduction)


def validate(model, text, batch):
    model.eval()
    with torch.no_grad():
        if batch == 1:
            total = 0.0
            for sample in text:
                total += model.loss(sample[None], "sum").item()
        else:
            total = sum(model.loss(part, "sum") for part in text.split(batch)).item()
    model.train()
    return total / text[:, 1:].numel()


def main():
    loop = blind.Loop("validation_one_sample_at_a_time", "sync", steps=300)
    device = loop.device()
    torch.manual_seed(0)
    letters, width, length = 96, loop.size(1024, 16), loop.size(65, 9)
    # Healthy is the same training without validation.
    every = loop.size(10**9 if loop.variant == "healthy" else 50, 2)
    batch = 1 if loop.planted else 256
    model = CharModel(letters, width, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    text = torch.randint(0, letters, (4, loop.size(2048, 4), length), device=device)
    held_out = torch.randint(0, letters, (loop.size(256, 6), length), device=device)
    wait = blind.wait_for(device)

    def step(i):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model.loss(text[i % 4])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if (i + 1) % every:
            loop.planted_ms.append(0.0)
            return
        wait()
        begin = time.perf_counter()
        validate(model, held_out, batch)
        loop.planted_ms.append(1e3 * (time.perf_counter() - begin))

    loop.run(step, wait)


if __name__ == "__main__":
    main()
