# SPDX-License-Identifier: Apache-2.0
"""FlexLLMGen writes with OPT of 6.7 B parameters whose weights lie in the host's memory; a step is a word of four texts.

An engineer sees thirteen gigabytes go through the bus for every word, a quarter of a second from pinned memory, layer
after layer while the layer before is computed, and the GPU use each weight for four words, a few milliseconds in all.
The model fits this GPU ten times. The repair keeps the weights there, an option of the script. In both variants the
weights are ones, also an option of the script, the prompt is made of numbers as long as its own, and 128 words follow.
"""
CAUSE = "copy"
LINE = "flexllmgen/flex_opt.py:1022"
LINES = ["flexllmgen/flex_opt.py:1028", "flexllmgen/flex_opt.py:664", "flexllmgen/pytorch_backend.py:855"]
REPOSITORY = "FMInference/FlexLLMGen"
COMMIT = "004ffef82b46e8dc8685c55d0cdda650bdaf1269"
COMMAND = ["flexllmgen/flex_opt.py", "--model", "facebook/opt-6.7b", "--path", "_DUMMY_", "--percent", "0", "100", "100",
           "0", "100", "0", "--gen-len", "128", "--offload-dir", "offloaded"]
EDITS = [
    ("flexllmgen/flex_opt.py", 1030, 1029, "            step_done()"),
    ("flexllmgen/utils.py", 3, 4, ""),
    ("flexllmgen/flex_opt.py", 1173, 1175, "    input_ids = [[1] * (prompt_len - 7) + list(range(2, 9))]"),
    ("flexllmgen/flex_opt.py", 1181, 1184, "    tokenizer = None"),
]
REPAIR = [("flexllmgen/flex_opt.py", 1192, 1191, "    args.percent[:2] = 100, 0")]
STEPS = 60
WARM_UP = 5
BEFORE = 2
