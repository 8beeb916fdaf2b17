#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether checkpoints that transformers saved compute the same here.

For each family a small model with random weights is made by transformers' own classes, every
parameter drawn anew (biases and norms too, so that none hides at its start), and saved in the
family's format. Then `saturate` scores given token ids and continues some greedily, and so does
transformers, in fp32. Needs torch and transformers; no network.

  python3 bench/peers/checkpoints.py --program build/bin/saturate [--family NAME ...] [--device cuda]

Prints one line a family: "right:", or "wrong:" with what differs. Exit status 1 if any is wrong.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import numpy  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402

tf.utils.logging.disable_progress_bar()

GREEDY = 100  # tokens that are compared
# Sizes of the models. --golden has smaller ones, whose files lie in the repository.
WIDTH, HEADS, HEAD, FFN, ENCODER, DECODER, VOCAB, POSITIONS = 48, 4, 16, 80, 2, 4, 301, 256


def small_translator(config_class, model_class, **more):
    return model_class(config_class(
        vocab_size=VOCAB, d_model=WIDTH, encoder_layers=ENCODER, decoder_layers=DECODER,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=FFN, decoder_ffn_dim=FFN,
        max_position_embeddings=POSITIONS, **more))


def marian(**more):
    return small_translator(
        tf.MarianConfig, tf.MarianMTModel, activation_function="swish", pad_token_id=VOCAB - 1, eos_token_id=0,
        decoder_start_token_id=VOCAB - 1, scale_embedding=True, static_position_embeddings=True,
        bos_token_id=0, forced_eos_token_id=0, decoder_vocab_size=VOCAB, **more)


def pegasus():
    return small_translator(
        tf.PegasusConfig, tf.PegasusForConditionalGeneration, activation_function="relu", pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0, scale_embedding=True, forced_eos_token_id=1,
        static_position_embeddings=True, normalize_before=True, normalize_embedding=False,
        add_final_layer_norm=True)


def m2m100():
    return small_translator(tf.M2M100Config, tf.M2M100ForConditionalGeneration, activation_function="relu",
                            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2,
                            scale_embedding=True)


def bart(**more):
    return small_translator(tf.BartConfig, tf.BartForConditionalGeneration, activation_function="gelu",
                            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2,
                            forced_eos_token_id=2, scale_embedding=False, **more)


def mbart():
    return small_translator(tf.MBartConfig, tf.MBartForConditionalGeneration, activation_function="gelu",
                            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2,
                            forced_eos_token_id=2, scale_embedding=True)


def t5(config_class=tf.T5Config, model_class=tf.T5ForConditionalGeneration, **more):
    more = dict(feed_forward_proj="relu", tie_word_embeddings=True, d_kv=HEAD) | more
    return model_class(config_class(
        vocab_size=VOCAB, d_model=WIDTH, num_layers=ENCODER, num_decoder_layers=DECODER, num_heads=HEADS, d_ff=FFN,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, relative_attention_num_buckets=32,
        relative_attention_max_distance=128, **more))


def decoder(config_class, model_class, **more):
    fields = dict(vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=FFN, num_hidden_layers=DECODER,
                  num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, max_position_embeddings=2 * POSITIONS,
                  tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=None,
                  rms_norm_eps=1e-6)
    return model_class(config_class(**(fields | more)))


def marian_program():
    """What Marian's own program computes: MarianMTModel with its spacing of positions and its epsilon of norms."""
    model = marian()
    half = WIDTH // 2
    angles = torch.arange(POSITIONS)[:, None] * torch.exp(torch.arange(half) * -(math.log(10000.0) / (half - 1)))
    for side in (model.model.encoder, model.model.decoder):
        with torch.no_grad():
            side.embed_positions.weight.copy_(torch.cat([angles.sin(), angles.cos()], 1))
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    model.of_marian = True
    return model


def save_marian_npz(model, folder):
    """The file that Marian's program would have written of these weights."""
    config, arrays = model.config, {}
    state = {k: v.numpy() for k, v in model.state_dict().items()}
    names = {"self_attn": "self", "encoder_attn": "context", "fc1": "ffn", "fc2": "ffn"}
    parts = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o", "fc1": "1", "fc2": "2"}
    norms = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}
    for name, value in state.items():
        words = name.split(".")
        if "layers" not in words:
            continue
        prefix = f"{words[1]}_l{int(words[3]) + 1}_"
        kind = words[-1]
        if words[4] in norms:
            arrays[f"{prefix}{norms[words[4]]}_ln_{'scale' if kind == 'weight' else 'bias'}"] = value[None]
        else:
            to = prefix + names[words[4]] + ("_W" if kind == "weight" else "_b") + parts[words[-2]]
            arrays[to] = numpy.ascontiguousarray(value.T) if kind == "weight" else value[None]
    arrays["Wemb"] = state["model.shared.weight"][:-1]
    arrays["decoder_ff_logit_out_b"] = state["final_logits_bias"][:, :-1]
    options = f"""bert-mask-symbol: "[MASK]"
dec-depth: {config.decoder_layers}
dim-emb: {config.d_model}
dim-vocabs:
  - {config.vocab_size - 1}
  - {config.vocab_size - 1}
enc-depth: {config.encoder_layers}
input-types:
  []
skip: false
tied-embeddings-all: true
transformer-decoder-autoreg: self-attention
transformer-dim-ffn: {config.encoder_ffn_dim}
transformer-ffn-activation: {config.activation_function}
transformer-ffn-depth: 2
transformer-guided-alignment-layer: last
transformer-heads: {config.encoder_attention_heads}
transformer-no-projection: false
transformer-postprocess: dan
transformer-postprocess-emb: d
transformer-preprocess: ""
transformer-tied-layers:
  []
transformer-train-position-embeddings: false
type: transformer
version: v1.10.0 6f6d4846 2021-02-06 15:35:16 -0800
"""
    arrays["special:model.yml"] = numpy.frombuffer(options.encode() + b"\0", dtype=numpy.int8)
    save_arrays = numpy.savez if WIDTH > 16 else numpy.savez_compressed  # small files lie in the repository
    save_arrays(os.path.join(folder, "model.npz"), **arrays)


UNTIED = ("t5-v1.1", "mt5")  # an output of their own


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
GOLDEN = ("marian-bin-half", "m2m100", "bart", "mbart", "t5", "t5-v1.1", "llama3", "mistral", "qwen2", "qwen3",
          "gemma2", "llama-shards-bf16", "marian-npz")

FAMILIES = {
    "marian": marian,
    "marian-bin-half": marian,  # pytorch_model.bin in half precision, as OPUS-MT's repositories have it
    "marian-old-bin": marian,
    "marian-npz": marian_program,
    "pegasus": pegasus,
    "m2m100": m2m100,
    "bart": bart,
    "mbart": mbart,
    "t5": t5,
    "t5-v1.1": lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": lambda: t5(tf.MT5Config, tf.MT5ForConditionalGeneration, feed_forward_proj="gated-gelu",
                      tie_word_embeddings=False, d_kv=HEAD // 2),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=WIDTH, n_layer=DECODER, n_head=HEADS, bos_token_id=2, eos_token_id=2)),
    "llama2": lambda: decoder(tf.LlamaConfig, tf.LlamaForCausalLM),
    "llama3": lambda: decoder(tf.LlamaConfig, tf.LlamaForCausalLM, eos_token_id=[2, 3, 4], head_dim=HEAD,
                              rope_parameters=dict(LLAMA3, rope_theta=500000.0), rms_norm_eps=1e-5,
                              tie_word_embeddings=True),
    "mistral": lambda: decoder(tf.MistralConfig, tf.MistralForCausalLM, sliding_window=24, head_dim=HEAD + 8,
                               rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "qwen2": lambda: decoder(tf.Qwen2Config, tf.Qwen2ForCausalLM, tie_word_embeddings=True,
                             rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "qwen3": lambda: decoder(tf.Qwen3Config, tf.Qwen3ForCausalLM, tie_word_embeddings=True, head_dim=HEAD + 8,
                             rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "gemma2": lambda: decoder(tf.Gemma2Config, tf.Gemma2ForCausalLM, tie_word_embeddings=True, head_dim=HEAD + 8,
                              query_pre_attn_scalar=20, sliding_window=24, pad_token_id=0, eos_token_id=1,
                              bos_token_id=2, hidden_activation="gelu_pytorch_tanh"),
    "llama-shards-bf16": lambda: decoder(tf.LlamaConfig, tf.LlamaForCausalLM),
}


def draw(model, seed):
    """Every parameter anew. The row of the end of a sentence is small, so that texts go on."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "embed_positions" in name and p.shape[0] >= POSITIONS and hasattr(p, "requires_grad") and not p.requires_grad:
                continue  # computed
            scale = {1: 0.1, 2: 0.7 / p.shape[-1] ** 0.5}[p.dim()]
            if "relative_attention_bias" in name:
                scale = 0.7
            if "embed" in name or "shared" in name or "wte" in name or "lm_head" in name:
                scale = 0.35
            p.copy_(torch.randn(p.shape, generator=generator) * scale + (1.0 if p.dim() == 1 and (
                "norm" in name or "ln_" in name) and name.endswith("weight") and "gemma" not in config.model_type
                else 0.0))
        for name, b in model.named_buffers():
            if name == "final_logits_bias":
                b.copy_(torch.randn(b.shape, generator=generator) * 0.3)
        eos = config.eos_token_id
        for e in eos if isinstance(eos, list) else [eos]:
            model.get_output_embeddings().weight[e] *= 0.01
            if hasattr(model, "final_logits_bias"):
                model.final_logits_bias[0, e] = -3
        if config.model_type in ("marian", "pegasus", "m2m_100", "bart", "mbart"):
            model.get_input_embeddings().weight[config.pad_token_id] = 0
        if getattr(model, "of_marian", False):  # its program has no padding that could be chosen
            model.final_logits_bias[0, config.pad_token_id] = -1e4
    model.eval()
    return model


def save(name, model, folder):
    if name in ("marian-bin-half", "marian-old-bin"):
        model.half().float()
        model.save_pretrained(folder)
        state = {k: v.half() for k, v in model.state_dict().items()}
        torch.save(state, os.path.join(folder, "pytorch_model.bin"))
        os.remove(os.path.join(folder, "model.safetensors"))
        model.load_state_dict({k: v.float() for k, v in state.items()})
        if name == "marian-old-bin":  # as files from before PyTorch 1.6
            torch.save(state, os.path.join(folder, "pytorch_model.bin"), _use_new_zipfile_serialization=False)
    elif name == "llama-shards-bf16":
        model.bfloat16().save_pretrained(folder, max_shard_size="100KB" if WIDTH > 16 else "4KB")
        # Not model.float(): its rotary frequencies have been rounded too.
        model = type(model).from_pretrained(folder, dtype=torch.float32)
    elif name == "marian-npz":
        save_marian_npz(model, folder)
    elif name in UNTIED:
        model.config.save_pretrained(folder)
        state = {k: v.clone() for k, v in model.state_dict().items() if not k.endswith("coder.embed_tokens.weight")}
        safetensors.torch.save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        model.config.scale_decoder_outputs = False
    else:
        model.save_pretrained(folder)
    path = os.path.join(folder, "generation_config.json")
    given = json.load(open(path)) if os.path.exists(path) else {}
    given["saturate"] = {"max_length_factor": 1.0, "max_length_offset": GREEDY}
    json.dump(given, open(path, "w"))
    if name in UNTIED:  # as its authors published it; transformers 5 writes true and ties on loading
        path = os.path.join(folder, "config.json")
        config = json.load(open(path))
        config.pop("scale_decoder_outputs", None)
        json.dump(config | {"tie_word_embeddings": False}, open(path, "w"))
    return model.eval()


def write_ids(path, rows):
    with open(path, "w") as f:
        for row in rows:
            f.write(" ".join(map(str, row)) + "\n")
    return path


def eos_ids(config):
    return config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]


@torch.no_grad()
def log_probabilities(model, source, target):
    """Of the tokens of target, in double precision from fp32 logits."""
    if model.config.is_encoder_decoder:
        start = [model.config.decoder_start_token_id] + target[:-1]
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([start])).logits
        labels = target
    else:
        logits = model(input_ids=torch.tensor([target[:-1]])).logits
        labels = target[1:]
    return torch.log_softmax(logits[0].double(), -1)[range(len(labels)), labels].tolist()


@torch.no_grad()
def alike(a, b):
    """How many ids two sequences begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def greedy(model, prompt):
    config = model.config
    encdec = config.is_encoder_decoder
    ids = [config.decoder_start_token_id] if encdec else list(prompt)
    memory = model.get_encoder()(input_ids=torch.tensor([prompt])) if encdec else None
    out = []
    for _ in range(GREEDY):
        if encdec:
            logits = model(encoder_outputs=memory, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
            logits[config.pad_token_id] = -torch.inf  # as bad_words_ids says
        else:
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        best = int(logits.argmax())
        if best in eos_ids(config):
            break
        ids.append(best)
        out.append(best)
    return out


def run(program, *arguments):
    done = subprocess.run([program, *arguments, "--quiet"], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return done.stdout.splitlines()


def shrink():
    global GREEDY, WIDTH, HEADS, HEAD, FFN, ENCODER, DECODER, VOCAB, POSITIONS
    GREEDY, WIDTH, HEADS, HEAD, FFN, ENCODER, DECODER, VOCAB, POSITIONS = 40, 8, 2, 4, 12, 1, 2, 41, 64


def write_golden(folder):
    """Models small enough for a repository, in half precision, with what transformers computes of them."""
    shrink()
    for name in GOLDEN:
        to = os.path.join(folder, name)
        os.makedirs(to, exist_ok=True)
        model = draw(FAMILIES[name](), seed=7)
        with torch.no_grad():  # what half precision holds
            stored = [p for n, p in model.named_parameters() if name != "marian-npz" or "positions" not in n]
            for p in stored + [b for n, b in model.named_buffers() if n == "final_logits_bias"]:
                p.copy_(p.half().float())
        generator = torch.Generator().manual_seed(3)
        if name in UNTIED:
            model.lm_head.weight = torch.nn.Parameter(
                (torch.randn(model.lm_head.weight.shape, generator=generator) * 0.3).half().float())
        model = save(name, model, to)
        path = os.path.join(to, "model.safetensors")
        if os.path.exists(path):
            state = {k: v.half() for k, v in safetensors.torch.load_file(path).items() if "embed_positions.weights" not in k}
            safetensors.torch.save_file(state, path, metadata={"format": "pt"})
        os.remove(os.path.join(to, "generation_config.json")) if name != "llama3" else None
        sequence = lambda n: torch.randint(5, VOCAB - 2, (n,), generator=generator).tolist()
        end = eos_ids(model.config)[0]
        source, target = sequence(17) + [end], sequence(30) + [end]
        prompt = source if model.config.is_encoder_decoder else source[:-1]
        golden = {"source": source, "target": target, "prompt": prompt,
                  "log_probability": sum(log_probabilities(model, source, target)), "greedy": greedy(model, prompt)}
        json.dump(golden, open(os.path.join(to, "golden.json"), "w"))


def judge(name, program, device, folder, precision, prompts):
    torch.manual_seed(1)
    model = draw(FAMILIES[name](), seed=7)
    config = model.config
    generator = torch.Generator().manual_seed(3)
    low, high = 5, config.vocab_size - 2
    sequence = lambda n: torch.randint(low, high, (n,), generator=generator).tolist()
    end = eos_ids(config)[0]
    sources = [sequence(n) + [end] for n in (1, 9, 40, 70)]
    targets = [sequence(n) + [end] for n in (2, 12, 100, 45)]
    if name in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(model.lm_head.weight.shape, generator=generator) * 0.3)
    model = save(name, model, folder)
    common = ["--model", folder, "--device", device, "--precision", precision, "--ids", "--threads", "1"]
    files = [write_ids(os.path.join(folder, "target.ids"), targets)]
    if config.is_encoder_decoder:
        files.insert(0, write_ids(os.path.join(folder, "source.ids"), sources))
    scores = run(program, "eval", *common, "--score", "--test", *files)
    worst = 0.0
    for line, source, target in zip(scores, sources, targets, strict=True):
        theirs = log_probabilities(model, source, target)
        ours = float(line.split("\t")[0])
        worst = max(worst, abs(ours - sum(theirs)) / len(theirs))
    same, length = [], []
    for prompt in sources[1:1 + prompts]:
        if config.is_encoder_decoder:
            wanted = greedy(model, prompt)
            path = write_ids(os.path.join(folder, "one.ids"), [prompt])
            got = run(program, "translate", *common, "--beam", "1", "--input", path)[0]
            got = [int(x) for x in got.split()][:GREEDY]
        else:
            prompt = prompt[:-1]
            wanted = greedy(model, prompt)
            got = run(program, "generate", *common, "--temperature", "0", "--max-tokens", str(GREEDY),
                      "--prompt", " ".join(map(str, prompt)))[0]
            got = [int(x) for x in got.split()][len(prompt):]
        common_length = alike(got, wanted)
        same.append(common_length == len(wanted) == len(got))
        length.append(f"{common_length}/{len(wanted)}")
    tolerance = 2e-4 if precision == "fp32" else 3e-2
    right = worst < tolerance and (all(same) or precision != "fp32")
    print(f"{'right' if right else 'wrong'}: {name}: log-probabilities within {worst:.1e} a token; "
          f"greedy tokens alike: {', '.join(length) or 'not tried'}", flush=True)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default="build/bin/saturate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", help="fp32; bf16 compares scores only")
    parser.add_argument("--prompts", type=int, default=2, choices=range(4), help="texts that are continued")
    parser.add_argument("--family", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--keep", help="folder in which the models are left")
    parser.add_argument("--golden", help="folder to write the models of the repository's own test to, and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.golden:
        write_golden(options.golden)
        return 0
    right = True
    for name in options.family:
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(options.keep or scratch, name)
            os.makedirs(folder, exist_ok=True)
            try:
                right = judge(name, options.program, options.device, folder, options.precision, options.prompts) and right
            except RuntimeError as error:
                right = False
                print(f"wrong: {name}: {error}", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
