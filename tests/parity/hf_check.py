# SPDX-License-Identifier: Apache-2.0
"""Loads a model folder with Hugging Face transformers and prints its logits as JSON.

Needs torch and transformers. Saturate's own logits for the same ids must agree within fp32 rounding.

    python hf_check.py FOLDER --ids 5 7 2 [--source-ids 4 9 2] [--device cuda] [--all-positions]

FOLDER      config.json and model.safetensors of a marian, gpt2 or llama model.
--ids       what the decoder reads (for marian beginning with decoder_start_token_id).
--source-ids  what the encoder reads; marian only.

The output is one object: class, ids, source_ids, shape, logits (one row for each position, or for
the last one only), and the tensors that transformers found missing or unexpected, which must be none.
"""

import argparse
import json
import sys

import torch
import transformers

CLASSES = {
    "marian": "MarianMTModel",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
}
# Computed by the class or tied to another tensor, so their absence from a file is no loss.
DERIVED = ("lm_head.weight", "embed_positions.weight", "embed_tokens.weight", ".attn.bias", "inv_freq")


def load(folder, device):
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        kind = json.load(file)["model_type"]
    if kind not in CLASSES:
        sys.exit(f"{folder}/config.json: model_type {kind} is none of {', '.join(CLASSES)}")
    model, info = getattr(transformers, CLASSES[kind]).from_pretrained(
        folder, torch_dtype=torch.float32, output_loading_info=True
    )
    return kind, model.eval().to(device), info


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--ids", type=int, nargs="+", required=True)
    parser.add_argument("--source-ids", type=int, nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--all-positions", action="store_true")
    args = parser.parse_args()

    # fp32 products only: the comparison is with fp32 arithmetic.
    torch.backends.cuda.matmul.allow_tf32 = False
    kind, model, info = load(args.folder, args.device)
    if (kind == "marian") != (args.source_ids is not None):
        parser.error("--source-ids goes with a marian model, and with no other")
    ids = torch.tensor([args.ids], device=args.device)
    with torch.no_grad():
        if kind == "marian":
            source = torch.tensor([args.source_ids], device=args.device)
            logits = model(input_ids=source, decoder_input_ids=ids).logits[0]
        else:
            logits = model(input_ids=ids).logits[0]
    missing = [name for name in info["missing_keys"] if not name.endswith(DERIVED)]
    rows = logits if args.all_positions else logits[-1:]
    result = {
        "class": CLASSES[kind],
        "transformers": transformers.__version__,
        "ids": args.ids,
        "source_ids": args.source_ids,
        "shape": list(rows.shape),
        "missing": missing,
        "unexpected": sorted(info["unexpected_keys"]),
        "mismatched": [str(entry) for entry in info["mismatched_keys"]],
        "logits": rows.double().cpu().tolist(),
    }
    json.dump(result, sys.stdout)
    print()
    return 1 if missing or result["unexpected"] or result["mismatched"] else 0


if __name__ == "__main__":
    sys.exit(main())
