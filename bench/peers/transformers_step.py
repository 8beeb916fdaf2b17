#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training step of a Llama-shaped Hugging Face model with attn_implementation "saturate" against SDPA's backends.

    PYTHONPATH=build/python python3 bench/peers/transformers_step.py [--layers 16] [--batch 4] [--length 2048]

Random weights, bf16, forward and backward and a fused AdamW step, no recomputation. All implementations take turns in one
process; medians of steps timed with CUDA events. The default shape has 1.0 billion parameters.
"""
import argparse
import statistics

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

from saturate.integrations import transformers as integration

BACKENDS = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa cudnn": SDPBackend.CUDNN_ATTENTION,
    "saturate": None,
}


def make_step(model, optimizer, ids, name):
    def step():
        model.set_attn_implementation("saturate" if BACKENDS[name] is None else "sdpa")
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def run():
        if BACKENDS[name] is None:
            return step()
        with sdpa_kernel(BACKENDS[name]):
            return step()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    integration.register()
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=args.width, intermediate_size=4 * args.width, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=args.length,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.train()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f}e9 parameters, {args.batch} x {args.length} tokens, "
          f"head size {args.width // args.heads}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, 32000, (args.batch, args.length), device="cuda")
    steps = {name: make_step(model, optimizer, ids, name) for name in BACKENDS}
    for step in steps.values():
        for _ in range(2):
            step()
    times = {name: [] for name in steps}
    for _ in range(args.steps):
        for name, step in steps.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end))
    best = min(statistics.median(t) for name, t in times.items() if BACKENDS[name] is not None)
    for name, t in times.items():
        median = statistics.median(t)
        print(f"{name:12} {median:8.2f} ms a step, {args.batch * args.length / median:7.1f}k tokens/s, "
              f"{best / median:.3f} of the best SDPA")


if __name__ == "__main__":
    main()
