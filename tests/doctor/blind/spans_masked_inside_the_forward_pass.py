# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/issues/10459 (remedy in speechbrain/speechbrain#1312)

Training a speech model, the function that chooses which spans of a recording are masked is written in NumPy, inside
the model. Once the masks were made in the data loader, training became clearly faster.

Cause: in the middle of each forward pass the host fetches the lengths, waits for the GPU with that, then draws the
spans of one recording after the other with NumPy; the layers after the mask can't be launched before it is there.
Line: spans_masked_inside_the_forward_pass.py:masked (it calls the library's _compute_mask_indices; the model in loss
calls it).
Remedy: the loader's workers draw the masks, and the model gets them with the batch.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

import blind
import training

MASKED, SPAN = 0.65, 10  # share of the frames, and frames in a span


class Batches(torch.utils.data.Dataset):
    """Which of the batches on the GPU comes next, and its masks if the workers are to draw them."""

    def __init__(self, draw, lengths, frames, count):
        self.draw, self.lengths, self.frames, self.count = draw, lengths, frames, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        which = i % len(self.lengths)
        if not self.draw:
            return which, False
        known = torch.arange(self.frames) < self.lengths[which][:, None]
        mask = self.draw(known.shape, mask_prob=MASKED, mask_length=SPAN, attention_mask=known.long(), min_masks=2)
        return which, torch.from_numpy(mask)


def main():
    loop = blind.Loop("spans_masked_inside_the_forward_pass", "host", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    try:
        from transformers import Wav2Vec2Config, Wav2Vec2Model
        from transformers.models.wav2vec2 import modeling_wav2vec2
    except ImportError:
        raise SystemExit(f"{loop.name}: needs transformers (pip install transformers)")
    torch.manual_seed(0)
    rows, samples, width = loop.size(192, 2), loop.size(32000, 8000), loop.size(768, 32)
    config = Wav2Vec2Config(
        hidden_size=width, num_hidden_layers=loop.size(3, 1), num_attention_heads=loop.size(12, 2),
        intermediate_size=4 * width, conv_dim=(loop.size(128, 8),) * 7, feat_extract_norm="layer", conv_bias=True,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=loop.size(16, 2), layerdrop=0.0, hidden_dropout=0.0,
        activation_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, mask_time_prob=MASKED,
        mask_time_length=SPAN)
    with torch.device(device):
        model = Wav2Vec2Model(config).to(device, torch.bfloat16).train()  # one of its lies on the host
        head = nn.Linear(width, 64, bias=False).to(torch.bfloat16)
        sounds = [torch.randn(rows, samples).to(torch.bfloat16) for _ in range(4)]
    model.freeze_feature_encoder()
    seconds = [torch.randint(samples // 2, samples + 1, (rows,)) for _ in sounds]
    known = [(torch.arange(samples) < each[:, None]).long().to(device) for each in seconds]
    frames = int(model._get_feat_extract_output_lengths(torch.tensor(samples)))
    lengths = [model._get_feat_extract_output_lengths(each) for each in seconds]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5,
                                  fused=device.type == "cuda")
    draw = modeling_wav2vec2._compute_mask_indices
    span = training.GpuSpan(loop, device)

    def masked(*args, **options):
        """The model's own function, timed."""
        span.begin()
        mask = draw(*args, **options)
        span.end()
        return mask

    modeling_wav2vec2._compute_mask_indices = masked
    data = Batches(None if loop.planted else draw, lengths, frames, loop.warm_up + loop.steps)
    loader = iter(torch.utils.data.DataLoader(data, None, num_workers=loop.size(8, 1), prefetch_factor=4,
                                              pin_memory=device.type == "cuda"))

    def loss(which, mask):
        if not loop.planted:
            mask = mask.to(device, non_blocking=True)
        out = model(sounds[which], attention_mask=known[which], mask_time_indices=None if loop.planted else mask)
        return head(out.last_hidden_state).float().square().mean()

    def step(i):
        value = loss(*next(loader))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
