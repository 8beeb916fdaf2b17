# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/188150

Recorded graphs won a third in a test with one fixed length; on the real data, whose batches are padded to their own
longest member, steps became slower than without them.

Cause: a graph serves one shape, so every new length is warmed up and recorded again while the GPU waits.
Line: graph_recorded_for_every_length.py:record
Remedy: pad to four lengths; a few wasted columns, but four recordings in all.
"""
import time

import torch
from torch import nn

import blind


class Decoder(nn.Module):
    def __init__(self, width, layers, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def record(train, ids, stream, pool):
    """(function that replays train(ids), milliseconds the recording took); on a CPU nothing is recorded."""
    if stream is None:
        return lambda: train(ids), 0.0
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        train(ids)  # warm-up, as the manual asks
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        train(ids)
    return graph.replay, 1e3 * (time.perf_counter() - begin)


def main():
    loop = blind.Loop("graph_recorded_for_every_length", "recompile", steps=400)
    device = loop.device()
    torch.manual_seed(0)
    longest, vocabulary = loop.size(512, 16), 2048
    batch = loop.size(64 if loop.variant == "healthy" else 24, 2)
    model = Decoder(loop.size(1024, 32), loop.size(6, 2), vocabulary).to(device, torch.bfloat16)
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.zeros_like(p)
    generator = torch.Generator().manual_seed(1)
    unit = loop.size(4, 1)
    lengths = [unit * int(n) for n in torch.randint(longest // unit // 8, longest // unit + 1, (1024,),
                                                    generator=generator)]
    text = torch.randint(1, vocabulary, (batch, longest), generator=generator).to(device)
    stream, pool = None, None
    if device.type == "cuda":
        stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    recorded = {}

    def train(ids):
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        with torch.no_grad():
            torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-1e-4)
            torch._foreach_mul_([p.grad for p in parameters], 0.0)

    def step(i):
        length = lengths[i % len(lengths)]
        quarter = longest // 4
        padded = length if loop.planted else -(-length // quarter) * quarter
        spent = 0.0
        if padded not in recorded:
            ids = torch.zeros(batch, padded, dtype=torch.long, device=device)
            ids[:, :2] = 1  # at least one target, or the warm-up divides by zero
            replay, spent = record(train, ids, stream, pool)
            recorded[padded] = ids, replay
        if loop.planted:
            loop.planted_ms.append(spent)
        ids, replay = recorded[padded]
        ids.zero_()
        ids[:, :length] = text[:, :length]
        replay()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
