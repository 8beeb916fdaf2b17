# SPDX-License-Identifier: Apache-2.0
"""The perplexity of a Llama of 7 B parameters in half precision, text after text of 2048 tokens, before it is pruned.

An engineer sees matrix products of 2048 rows in half precision and fused attention take nearly all of a step of some
fifty milliseconds; nothing waits in between, and norms, rotations and activations between the products are worth a
tenth. Nothing cheap is left; both variants are the same. The weights are random, the texts are random tokens and more
of them, and nothing is pruned.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "locuslab/wanda"
COMMIT = "8e8fc87b4a2f9955baa7e76e64d5fce7fa8724a6"
COMMAND = ["main.py", "--model", "llama-7b", "--sparsity_ratio", "0", "--sparsity_type", "unstructured", "--save", "out"]
EDITS = [
    ("main.py", 5, 5, "from transformers import AutoModelForCausalLM, LlamaConfig"),
    ("main.py", 17, 23, """\
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(LlamaConfig())  # its defaults are those of 7 B parameters
    torch.set_default_dtype(torch.float32)
"""),
    ("main.py", 59, 59, "    tokenizer = None"),
    ("main.py", 79, 79, "    sparsity_ratio = 0"),
    ("lib/data.py", 6, 6, ""),
    ("lib/data.py", 20, 38, """\
    return [], TokenizerWrapper(torch.randint(32000, (1, 2000 * seqlen)))
"""),
    ("lib/eval.py", 122, 122, "        nlls.append(neg_log_likelihood)\n        step_done()"),
]
REPAIR = []
STEPS = 150
WARM_UP = 15
BEFORE = 3
REMEDIES = {"kernel_copies": [("lib/eval.py", 107, 107, "        lm_logits = model(inputs, use_cache=False).logits")]}
