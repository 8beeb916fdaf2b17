# SPDX-License-Identifier: Apache-2.0
"""A book's GPT-2 of 124 M parameters with its hints for speed applied: bfloat16, compiled, 32 x 1024 tokens a step.

An engineer sees large products in bfloat16, fused attention, a fused optimizer and compiled kernels between them, back
to back for some sixty milliseconds, for which nothing waits; four processes bring batches of a quarter of a megabyte.
The loss is outside what is compiled, which is worth a twentieth. Nothing cheap is left; both variants are the same. The
text is random tokens and longer, and nothing is tested or generated.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "rasbt/LLMs-from-scratch"
COMMIT = "28c65cdfbc3338e2e040016eea4b7fdf556e4d57"
FOLDER = "ch05/10_llm-training-speed"
COMMAND = ["01_opt_single_gpu.py"]
EDITS = [
    ("ch05/10_llm-training-speed/01_opt_single_gpu.py", 11, 11, ""),
    ("ch05/10_llm-training-speed/01_opt_single_gpu.py", 15, 15, ""),
    ("ch05/10_llm-training-speed/01_opt_single_gpu.py", 28, 28,
     "        token_ids = torch.randint(50257, (len(txt),)).tolist()"),
    ("ch05/10_llm-training-speed/01_opt_single_gpu.py", 47, 47, "    tokenizer = None"),
    ("ch05/10_llm-training-speed/01_opt_single_gpu.py", 302, 302, "            if False:"),
    ("ch05/10_llm-training-speed/01_opt_single_gpu.py", 396, 407, "    text_data = range(8000000)"),
    ("ch05/10_llm-training-speed/01_opt_single_gpu.py", 453, 453, "    tokenizer = None"),
]
REPAIR = []
STEPS = 120
WARM_UP = 10
BEFORE = 3
