// SPDX-License-Identifier: Apache-2.0
// Every configuration key, once. Types and defaults are those of the structs in config.h.
#include "base/config_keys.h"

#include <array>

namespace saturate::config {
namespace {

#define AT(path) #path, [](RunConfig & c) -> Slot { return &c.path; }

// clang-format off
const Key kKeys[] = {
    {AT(out), "folder of the run: checkpoints, model, metrics, report"},
    {AT(resume), "continue the run in `out` from its last checkpoint"},
    {AT(quiet), "no progress lines"},

    {AT(init.from), "start from the weights and with the vocabulary of this folder (of a run, or of a Hugging Face model) instead of anew"},

    {AT(model.preset), "shape of the model; other model.* keys change single properties of it; auto: base, or the model of init.from", 0, 0,
     "auto|tiny|base|big|gpt2-124m|gpt2-355m|gpt2-774m|gpt2-1558m|llama-110m"},
    {AT(model.d_model), "width of the residual stream (C)", 8, 65536},
    {AT(model.encoder_layers), "layers of the encoder of a translation model; language model presets have none", 0, 1024},
    {AT(model.decoder_layers), "layers of the decoder", 1, 1024},
    {AT(model.heads), "attention heads (H)", 1, 1024},
    {AT(model.kv_heads), "key and value heads; must divide model.heads", 1, 1024},
    {AT(model.ffn), "width of the feed-forward layer (F)", 8, 1 << 20},
    {AT(model.max_positions), "rows of a learned position table; longest sequence in tokens; a translation model takes data.max_length at least", 8, 1 << 22},
    {AT(model.dropout), "dropout of embeddings and of each sublayer's output", 0, 0.95},
    {AT(model.attention_dropout), "dropout of attention weights", 0, 0.95},
    {AT(model.activation_dropout), "dropout after the activation of the feed-forward layer", 0, 0.95},
    {AT(model.norm), "normalisation", 0, 0, "layer_norm|rms_norm"},
    {AT(model.norm_eps), "added to the variance before the square root", 1e-12, 0.1},
    {AT(model.norm_position), "normalise before or after each sublayer", 0, 0, "pre|post"},
    {AT(model.activation), "activation of the feed-forward layer", 0, 0, "relu|gelu_tanh|gelu_erf|silu"},
    {AT(model.gated), "gated feed-forward layer (silu and gated: SwiGLU)"},
    {AT(model.mixers), "what mixes the tokens in the layers of a language model, taken in turn: self_attention, linear_attention; default: self_attention in all"},
    {AT(model.experts), "experts that stand in for the feed-forward layer, each as wide as model.ffn; 0: none", 0, 256},
    {AT(model.experts_per_token), "experts that compute a token; default: 2, with expert_routing switch 1", 1, 8},
    {AT(model.expert_every), "layers of each stack from one with experts to the next; 1: all layers have them", 1, 1024},
    {AT(model.expert_routing), "dropless: every token gets its experts; switch: one expert, gshard: two, the second at random, in training each with model.capacity_factor", 0, 0, "dropless|switch|gshard"},
    {AT(model.capacity_factor), "tokens that an expert takes of a micro-batch in training, in equal shares; switch and gshard drop the others", 0.01, 1000},
    {AT(model.router_aux_loss), "weight of the loss that balances the experts", 0, 1000},
    {AT(model.router_z_loss), "weight of the loss that keeps the router's logits small", 0, 1000},
    {AT(model.positions), "how tokens know their position", 0, 0, "sinusoidal|learned|rotary"},
    {AT(model.bias), "linear layers have a bias"},
    {AT(model.tie_embeddings), "input and output embeddings are one matrix"},

    {AT(data.train), "training text: two parallel files, or one TSV, JSONL or plain file, - for standard input; .gz and .zst are read as they are"},
    {AT(data.valid), "validation text, in the same form"},
    {AT(data.valid_name), "its name in reports"},
    {AT(data.more_valid), "further validation sets, each as \"NAME=SOURCE,TARGET\" or \"NAME=FILE\"; data.valid alone decides which model is the best"},
    {AT(data.test), "test sets, in the same form: the best model is scored on them at the end of the run"},
    {AT(data.format), "auto: two files are parallel, one is known by its ending; lines and stream are text for a language model, a document a line or a file", 0, 0, "auto|parallel|tsv|jsonl|lines|stream"},
    {AT(data.languages), "source and target language, or the two JSONL fields (a language model: one, \"text\"); default: the files' endings"},
    {AT(data.tokenizer), "auto trains one on data.train; or the path of a SentencePiece .model (two, separated by a comma, when not shared)"},
    {AT(data.tokenizer_type), "kind of tokenizer to train", 0, 0, "unigram|bpe|char|byte"},
    {AT(data.vocab_size), "pieces of the tokenizer to train (V), fewer where the text has not enough; default: 8000, a language model's own (GPT-2: 50257)", 16, 1 << 20},
    {AT(data.shared_vocabulary), "source and target share one tokenizer and one embedding"},
    {AT(data.character_coverage), "share of the text's characters that the tokenizer must know", 0.98, 1},
    {AT(data.tokenizer_sentences), "sentences the tokenizer is trained on, drawn evenly from the corpus", 1000, 1e9},
    {AT(data.max_length), "longest sentence in tokens, end of sentence included; longer pairs are left out and counted, longer documents cut; default: 256, a language model's context (GPT-2: 1024)", 2, 1 << 20},
    {AT(data.max_length_ratio), "leave out pairs whose lengths differ by more than this factor; 0: keep all", 0, 1000},
    {AT(data.skip_bad_lines), "leave out and count lines that are no UTF-8 text, too long, or without the fields of their format, a pair with its other side; false: they end the run"},
    {AT(data.workers), "threads that tokenize and pack", 1, 256},
    {AT(data.prefetch), "batches made ahead", 1, 1024},

    {AT(batch.target_tokens), "target tokens of a batch on one rank, padding never counted", 16, 1 << 24},
    {AT(batch.source_tokens), "source tokens of a batch; 0: from the corpus' length ratio", 0, 1 << 24},
    {AT(batch.sequences), "most sentences in a batch; 0: from the corpus' mean length", 0, 1 << 22},
    {AT(batch.accumulate), "batches per weight update", 1, 65536},

    {AT(optimizer.kind), "adamw; muon: momentum made orthogonal for the matrices of layers, AdamW for all else, both with one learning rate; adafactor: second moments as one number a row and a column, no first", 0, 0, "adamw|muon|adafactor"},
    {AT(optimizer.momentum), "Muon: decay of the momentum", 0, 0.9999999},
    {AT(optimizer.relative), "Adafactor: a parameter's step is lr times its root mean square, at least 0.001 (then lr = 0.01, schedule.warmup_steps = 10000 is what its authors took)"},
    {AT(optimizer.lr), "highest learning rate", 0, 10},
    {AT(optimizer.beta1), "AdamW: decay of the first moment", 0, 0.9999999},
    {AT(optimizer.beta2), "AdamW: decay of the second moment", 0, 0.9999999},
    {AT(optimizer.eps), "AdamW: added to the root of the second moment", 1e-20, 1},
    {AT(optimizer.weight_decay), "AdamW: decoupled weight decay of matrices", 0, 10},
    {AT(optimizer.clip_norm), "largest norm of the gradient; 0: no clipping", 0, 1e6},
    {AT(optimizer.ema_decay), "decay of the moving average of the weights that is validated and saved as the model; 0: none", 0, 0.9999999},
    {AT(optimizer.moments), "how AdamW's moments are held: fp32, 8 bytes a parameter; bf16, 4; 8bit, 2: codes of a dynamic map with a scale for 256; both rounded at random without bias", 0, 0, "fp32|bf16|8bit"},
    {AT(optimizer.freeze), "parameters that training leaves as they are: names as in a checkpoint, with * ? [] (\"encoder.*\", \"*.bias\")"},

    {AT(lora.rank), "rank of adapters beside the projections of init.from, which train alone; 0: none, and all of the model trains", 0, 65536},
    {AT(lora.alpha), "what they add counts alpha / rank times; 0: as large as the rank", 0, 1e6},
    {AT(lora.targets), "modules of transformers' model that have one, by their names or the ends of them (q_proj, v_proj); all-linear: every projection of the layers"},
    {AT(lora.dropout), "dropout of what they are given", 0, 0.95},
    {AT(lora.rslora), "alpha / sqrt(rank) instead of alpha / rank"},
    {AT(lora.quantize_base), "nf4: hold the projections beside which adapters train in 4 bits, and what else is frozen in the compute type (QLoRA)", 0, 0, "none|nf4"},

    {AT(schedule.kind), "learning rate after warm-up", 0, 0, "constant|inverse_sqrt|linear|cosine|warmup_stable_decay"},
    {AT(schedule.warmup_steps), "steps from 0 to optimizer.lr", 0, kUnbounded},
    {AT(schedule.total_steps), "step at which linear, cosine and warmup_stable_decay end; 0: train.max_steps", 0, kUnbounded},
    {AT(schedule.final_ratio), "last learning rate as a share of optimizer.lr", 0, 1},
    {AT(schedule.decay_fraction), "warmup_stable_decay: share of the steps in the last decay", 0, 1},

    {AT(train.device), "auto (a GPU if there is one), cpu, cuda or cuda:N"},
    {AT(train.precision), "auto: bf16 on GPUs from compute capability 8.0, fp16 on older ones, fp32 on the CPU. bf16 on a CPU (with AVX512-BF16): operands of products alone. fp8: bf16, and products of layers in 8 bits from compute capability 8.9 on (on the CPU fp32 and 8 bits emulated). mxfp8, nvfp4: the same in 8 and 4 bits scaled by blocks, from compute capability 10.0 on", 0, 0, "auto|fp32|bf16|fp16|fp8|mxfp8|nvfp4"},
    {AT(train.tf32), "let fp32 matrix products round their inputs to 10-bit mantissas"},
    {AT(train.gemm_table), "what `saturate tune gemm` measured: auto (the user's cache), none, or a file; the run keeps a copy in `out` and resumes with that"},
    {AT(train.attention_table), "what `saturate tune attention` measured: auto (the user's cache), none, or a file; the run keeps a copy in `out` and resumes with that"},
    {AT(train.seed), "start of all random numbers: same seed, data and configuration, same run", 0, kUnbounded},
    {AT(train.max_steps), "stop after this many weight updates; 0: no bound", 0, kUnbounded},
    {AT(train.max_epochs), "stop after this many passes over the data; 0: no bound", 0, kUnbounded},
    {AT(train.max_seconds), "stop after this time; 0: no bound", 0, 1e9},
    {AT(train.label_smoothing), "share of the target spread over all words; default: 0.1, a language model 0", 0, 0.9},
    {AT(train.graph), "run the step as one CUDA graph (GPU only)"},
    {AT(train.packing), "lay sentences end to end; off: one sentence per fixed slot, padded, for comparison"},
    {AT(train.prefetch), "make batches while the previous step runs; off: for comparison"},
    {AT(train.stop_after_bad_steps), "stop after this many steps in a row with a loss that is not finite", 1, kUnbounded},
    {AT(train.memory), "device memory the run may use, as \"4GiB\"; 0: what is free", 0, kUnbounded},
    {AT(train.log_every), "steps between progress lines in a log file", 1, kUnbounded},
    {AT(train.restart), "after a failure of the machine begin again from the last checkpoint, so many times at most", 0, 1e6},

    {AT(parallel.dp), "data parallel: ranks that train on different batches; 0: those that the other axes leave", 0, 65536},
    {AT(parallel.tp), "tensor and sequence parallel: ranks that share every matrix and the rows of a batch", 1, 1024},
    {AT(parallel.tp_overlap), "pieces of a product of tp ranks in the forward pass, computed beside each other's transfers; 1: whole; 0: what a model of time says", 0, 16},
    {AT(parallel.pp), "pipeline parallel: ranks that have different layers", 1, 1024},
    {AT(parallel.cp), "context parallel: ranks that share the tokens of long sequences", 1, 1024},
    {AT(parallel.cp_comm_type), "what ranks of cp exchange for attention: rows for heads (a2a), or the keys and values of all rows (all_gather), whatever the number of heads; auto: what moves fewer bytes where both can", 0, 0, "auto|a2a|all_gather"},
    {AT(parallel.ep), "expert parallel: ranks, of those of dp, cp and tp, that share every expert", 1, 1024},
    {AT(parallel.zero), "what the ranks of one parameter share out (ZeRO): 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too (FSDP); auto: 1 from two ranks on", 0, 0, "auto|0|1|2|3"},
    {AT(parallel.dp_shard), "ranks of dp that share out one copy with zero (hybrid sharding), such as those of a host: dp / dp_shard copies; 0: all of dp share one", 0, 65536},
    {AT(parallel.schedule), "order of micro-batches in a pipeline: 1f1b, gpipe, interleaved, zero-bubble, or a file of actions as PyTorch writes them (0F3,2I1) that ends in .csv; auto, also written parallel = auto: all of [parallel] is what saturate plan finds fastest"},
    {AT(parallel.chunks), "runs of layers on each rank of a pipeline", 1, 64},
    {AT(parallel.recompute), "what the backward pass computes again rather than keep: nothing, what adds 3% to a step at most, or whole layers; auto: as little as fits into the memory", 0, 0, "auto|none|selective|full"},
    {AT(parallel.offload), "master weights and moments lie in host memory and pass through the GPU in each step"},
    {AT(parallel.reduce), "type in which gradients travel between ranks; sums are fp32", 0, 0, "fp32|bf16"},
    {AT(parallel.reduce_between), "type in which sums of gradients over copies of the state travel (between hosts with dp_shard; zero = 0: all of dp): fp32, or int8, a quarter of the bytes, with what rounding takes kept for the next step", 0, 0, "fp32|int8"},

    {AT(validate.every_steps), "steps between validations; 0: not by steps", 0, kUnbounded},
    {AT(validate.every_epochs), "epochs between validations; 0: not by epochs", 0, kUnbounded},
    {AT(validate.metric), "what makes a checkpoint the best", 0, 0, "bleu|chrf|loss"},
    {AT(validate.patience), "stop after this many validations without a new best; 0: never", 0, kUnbounded},
    {AT(validate.beam), "beam width of validation", 1, 64},
    {AT(validate.max_sentences), "translate only the first sentences; 0: all", 0, kUnbounded},
    {AT(validate.beside), "while training goes on; auto: on a GPU", 0, 0, "auto|on|off"},

    {AT(checkpoint.every_steps), "steps between checkpoints; 0: by time only", 0, kUnbounded},
    {AT(checkpoint.every_minutes), "minutes between checkpoints; 0: by steps only", 0, 1e6},
    {AT(checkpoint.keep_last), "newest checkpoints kept", 1, 10000},
    {AT(checkpoint.keep_best), "1: the best model is kept, from which model/ can be made again", 0, 1},

    {AT(translate.beam), "beam width; 1: greedy", 1, 64},
    {AT(translate.length_penalty), "scores are divided by length to this power", 0, 10},
    {AT(translate.max_length_factor), "longest translation = factor * source tokens + offset", 0, 100},
    {AT(translate.max_length_offset), "see max_length_factor", 0, 65536},
    {AT(translate.batch_tokens), "source tokens translated at once", 16, 1 << 24},
};
// clang-format on
#undef AT

constexpr size_t kKeyCount = std::size(kKeys);

}  // namespace

std::span<const Key> keys() { return kKeys; }

std::span<const std::string_view> key_names() {
  static const auto names = [] {
    std::array<std::string_view, kKeyCount> all;
    for (size_t i = 0; i < kKeyCount; ++i) all[i] = kKeys[i].name;
    return all;
  }();
  return names;
}

const Key* find_key(std::string_view name) {
  for (const Key& key : kKeys) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

}  // namespace saturate::config
