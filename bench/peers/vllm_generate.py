#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continuing texts on a GPU with vLLM, in the cells of generate_gpu.py: tokens a second and the time to the first token.

    pip install vllm
    python3 bench/peers/generate_gpu.py --saturate build/bin/saturate --shape gpt2 --folder FOLDER --only ours    # makes FOLDER
    python3 bench/peers/vllm_generate.py FOLDER [--streams 1 64] [--sample] [--batched 32768]

One line of JSON a cell. One call of generate() for all texts, bf16, compiled, with CUDA graphs; its first token is that of the same
call with one token to make. Medians of --rounds after warm-ups. Beside what `generate_gpu.py --only ours` left in FOLDER.STREAMS.json it prints the
ratios, in how many texts the first token is alike, and how many tokens are in the middle one.
"""
import argparse
import json
import os
import statistics
import time
from pathlib import Path

from generate_gpu import NEW, SAMPLING, prompts

# The engine in this process, as vLLM's own offline benchmarks can have it; VLLM_ENABLE_V1_MULTIPROCESSING=1 gives it its own.
for key, value in {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                   "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_HOST_IP": "127.0.0.1"}.items():
    os.environ.setdefault(key, value)


def alike(ours, theirs):
    """Texts whose first token is alike, and the median number of tokens until they part."""
    same = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), NEW) for x, y in zip(ours, theirs)]
    return sum(s > 0 for s in same), statistics.median(same)


def measure(o, llm, streams):
    import torch
    import vllm

    given = [{"prompt_token_ids": p} for p in prompts(streams)]
    draw = {k: v for k, v in SAMPLING.items() if k != "top_k"} if o.sample else {"temperature": 0.0}

    def run(new):
        params = vllm.SamplingParams(max_tokens=new, ignore_eos=True, detokenize=False, **draw)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        out = llm.generate(given, params, use_tqdm=False)
        return time.perf_counter() - begin, [list(x.outputs[0].token_ids) for x in out]

    for new in (NEW, NEW, 1):
        run(new)
    whole, firsts = [run(NEW) for _ in range(o.rounds)], [run(1)[0] for _ in range(o.rounds)]
    total, first, tokens = statistics.median(w[0] for w in whole), statistics.median(firsts), whole[-1][1]
    if any(len(t) != NEW for t in tokens):
        raise SystemExit(f"wrong: {o.folder}, {streams} streams: {min(map(len, tokens))} tokens came, not {NEW}")
    cell = {"peer": f"vllm {vllm.__version__}", "model": o.folder, "streams": streams, "sampled": o.sample,
            "tokens_per_s": round(streams * NEW / total, 1), "first_token_ms": round(1e3 * first, 3)}
    left = Path(o.folder + f".{streams}.json")
    if left.exists():
        own = json.loads(left.read_text())
        cell.update(total_over_ours=round(total / own["total"], 3), ours_first_over_first=round(own["first"] / first, 3))
        if not o.sample:
            cell["first_alike"], cell["median_alike"] = alike(own["tokens"], tokens)
    print(json.dumps(cell), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample", action="store_true", help="draw as generate_gpu.py --sample does")
    parser.add_argument("--batched", type=int, help="tokens of a step at most (max_num_batched_tokens) [vLLM's choice]")
    o = parser.parse_args()
    import vllm

    llm = vllm.LLM(model=o.folder, dtype="bfloat16", skip_tokenizer_init=True, max_model_len=1024, gpu_memory_utilization=0.5,
                   enable_prefix_caching=False, max_num_seqs=max(o.streams), disable_log_stats=True, max_num_batched_tokens=o.batched)
    for streams in o.streams:
        measure(o, llm, streams)


if __name__ == "__main__":
    main()
