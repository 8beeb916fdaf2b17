# SPDX-License-Identifier: Apache-2.0
"""LoRA's own example: GPT-2 medium learns to write about restaurants with two small matrices a layer, 8 x 512 tokens.

An engineer sees products of 4096 rows with frozen weights of up to 1024 x 4096, and with an output layer of 50 257
words, done in float32 without tensor cores, which takes over half of the step. The repair runs the model under bf16
autocast; the script's own option needs a package that is gone. The other repair calls for what is written out in a
dozen operations each that read and write everything again: attention with its matrix of weights, normalization, and the
activation. In both variants the texts are made up, as long as the real set's, the weights are random, and there is one
process without a group.
"""
CAUSE = "precision"
LINE = "examples/NLG/src/gpt2_ft.py:196"
LINES = ["examples/NLG/src/model.py:78", "examples/NLG/src/gpt2_ft.py:127"]
REPOSITORY = "microsoft/LoRA"
COMMIT = "c4593f060e6a368d7bb5af5273b8e42810cdef90"
FOLDER = "examples/NLG"
COMMAND = ["src/gpt2_ft.py", "--train_data", "data/e2e/train.jsonl", "--valid_data", "data/e2e/valid.jsonl",
           "--train_batch_size", "8", "--grad_acc", "1", "--valid_batch_size", "4", "--seq_len", "512", "--model_card",
           "gpt2.md", "--platform", "none", "--clip", "0.0", "--lr", "0.0002", "--weight_decay", "0.01",
           "--correct_bias", "--adam_beta2", "0.999", "--scheduler", "linear", "--warmup_step", "500", "--max_epoch",
           "5", "--save_interval", "1000", "--lora_dim", "4", "--lora_alpha", "32", "--lora_dropout", "0.1",
           "--label_smooth", "0.1", "--work_dir", "trained", "--random_seed", "110", "--world_size", "1"]
EDITS = [
    ("examples/NLG/src/gpt2_ft.py", 9, 8, 'sys.path.insert(1, os.path.abspath("../.."))  # the package'),
    ("examples/NLG/src/gpt2_ft.py", 290, 290,
     "        sampler=torch.utils.data.distributed.DistributedSampler(train_data, 1, 0, seed=args.random_seed)"),
    ("examples/NLG/src/gpt2_ft.py", 296, 296,
     "        sampler=torch.utils.data.distributed.DistributedSampler(valid_data, 1, 0, seed=args.random_seed)"),
]
REPAIR = [("examples/NLG/src/gpt2_ft.py", 196, 198, """\
        with torch.autocast("cuda", torch.bfloat16):
            _lm_logits, _lm_loss = model(
                _input, lm_labels=_target, lm_mask=_msk, label_smooth=args.label_smooth
            )
""")]
OTHER_REPAIRS = {"memory": [
    ("examples/NLG/src/model.py", 24, 24, "    return F.gelu(x, approximate='tanh')"),
    ("examples/NLG/src/model.py", 61, 64,
     "        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.variance_epsilon)"),
    ("examples/NLG/src/model.py", 108, 107, """\
        if len_kv is None and q.size(-2) == k.size(-1) and self.scale:
            return F.scaled_dot_product_attention(q, k.transpose(-2, -1), v, is_causal=True)
"""),
]}
STEPS = 60
WARM_UP = 6
BEFORE = 2
