# SPDX-License-Identifier: Apache-2.0
"""The PyTorch counterpart of a GPT-2 written in C: 124 M parameters from random weights, 2 x 32 x 1024 tokens a step.

The options are those of the repository's own script: bf16, compiled, flash attention, a fused optimizer. An engineer
sees large matrix products and fused kernels back to back and one wait in a step of a hundred milliseconds or more;
nothing cheap is left, and both variants are the same. The tokens are random, no tokenizer is loaded, two micro-batches
are what one of eight GPUs gets, and the compiler's search for kernel variants, which takes minutes, is left out.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "karpathy/llm.c"
COMMIT = "f1e2ace651495b74ae22d45d1723443fd00ecd3a"
COMMAND = ["train_gpt2.py", "--input_bin", "dev/data/fineweb10B/fineweb_train_*.bin", "--write_tensors", "0",
           "--model", "d12", "--batch_size", "32", "--sequence_length", "1024", "--total_batch_size", "65536",
           "--dtype", "bfloat16", "--compile", "1", "--tensorcores", "1", "--flash", "1", "--num_iterations", "18865",
           "--weight_decay", "0.1", "--learning_rate", "0.0006", "--warmup_iters", "700",
           "--learning_rate_decay_frac", "0.0", "--overfit_single_batch", "0"]
EDITS = [
    ("train_gpt2.py", 538, 538, ""),
    ("train_gpt2.py", 647, 647, ""),
    ("train_gpt2.py", 648, 649, ""),
    ("train_gpt2.py", 667, 668, ""),
]
REPAIR = []
REMEDIES = {"syncs": [
    ("train_gpt2.py", 802, 802, "            x, y = (t.pin_memory().to(device, non_blocking=True) for t in (x, y))"),
    ("train_gpt2.py", 822, 822, ""),
    ("train_gpt2.py", 836, 837, ""),
    ("train_gpt2.py", 842, 842, "        if step % 20 == 0: print0(f\"step {step+1} | train loss {lossf:.6f} | norm {norm:.4f}\")"),
    ("train_gpt2.py", 844, 846, ""),
]}
STEPS = 50
WARM_UP = 5
BEFORE = 3
