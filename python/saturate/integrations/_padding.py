# SPDX-License-Identifier: Apache-2.0
"""Padded batches as packed rows, without moving a row.

In a batch (B, S) whose real tokens are one run [start, end) in each row, the S rows of a batch entry are three
sequences lying behind each other: what is before the run, the run, what is after it. Offsets say so, and attention
then never mixes them.
"""
import torch


class Padding:
    """Where the real tokens of each batch entry lie among the keys.

    mask : (B, S) bool, True for real tokens; each row must hold one run of True, or none.
    right : every run is known to begin at 0.
    """

    def __init__(self, mask, right):
        count = mask.sum(1, dtype=torch.int32)
        self.start = mask.to(torch.int32).argmax(1).to(torch.int32)
        self.end = self.start + count
        self.right = right
        self.keys = mask.shape[1]
        self._offsets = {}

    def _packed(self, first, second, rows):
        """Offsets of 3 B sequences: [0, first), [first, second), [second, rows) of each batch entry."""
        base = torch.arange(self.start.shape[0], dtype=torch.int32, device=self.start.device) * rows
        inner = torch.stack((base, base + first, base + second), dim=1).flatten()
        last = inner.new_full((1,), self.start.shape[0] * rows)
        return torch.cat((inner, last)).to(torch.int32)

    def offsets(self, queries, causal):
        """(cu_seqlens_q, cu_seqlens_k) for `queries` query rows of each batch entry.

        causal: the queries are the last tokens among the keys, and stay with the keys of their own run. Otherwise all
        queries see the run.
        """
        key = (queries, causal)
        if key not in self._offsets:
            cu_k = self._packed(self.start, self.end, self.keys)
            if causal and queries == self.keys:
                cu_q = cu_k
            elif causal:
                before = self.keys - queries
                cu_q = self._packed(
                    (self.start - before).clamp(min=0), (self.end - before).clamp(min=0), queries
                )
            else:
                zero = torch.zeros_like(self.start)
                cu_q = self._packed(zero, zero + queries, queries)
            self._offsets[key] = (cu_q, cu_k)
        return self._offsets[key]


def describe(mask):
    """(all real, Padding or None when a row holds several runs) of a (B, S) bool mask. Waits for the GPU once."""
    begins = mask.clone()
    begins[:, 1:] &= ~mask[:, :-1]
    runs = begins.sum(1)
    right = mask[:, 0] | (runs == 0) if mask.shape[1] else runs == 0
    everything, single, right = torch.stack((mask.all(), (runs <= 1).all(), right.all())).tolist()
    return everything, Padding(mask, right) if single else None


def may_wait(device):
    """Whether values on `device` can be read now: not while a graph is captured or code is compiled."""
    if torch.compiler.is_compiling():
        return False
    return device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
