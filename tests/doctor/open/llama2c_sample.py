# SPDX-License-Identifier: Apache-2.0
"""Generation with a small Llama (15 M parameters, six layers, width 288), one text at a time; a step is one token.

An engineer sees a forward pass of some three hundred operations in eager mode for every token, each a kernel of two or
three microseconds over at most 256 positions: the Python thread cannot launch faster. The repair keeps the positions in
a window of fixed length, which a causal model may fill from the left, and replays one CUDA graph of the forward pass.
In both variants the weights are random and no text is decoded, which needs a package of its own.
"""
CAUSE = "launch"
LINE = "model.py:325"
REPOSITORY = "karpathy/llama2.c"
COMMIT = "350e04fe35433e6d2941dce5a1f53308f87058eb"
COMMAND = ["sample.py", "--num_samples=100000", "--max_new_tokens=256"]
EDITS = [
    ("model.py", 342, 341, "            step_done()"),
    ("sample.py", 9, 11, ""),
    ("sample.py", 64, 64, ""),
    ("sample.py", 63, 63, "    tokenizer_model = None"),
    ("sample.py", 70, 70, "start_ids = [1]"),
    ("sample.py", 78, 79, ""),
]
REPAIR = [
    ("model.py", 313, 312, """\
    def next_logits(self, tokens):
        if not hasattr(self, "graph"):
            self.window = tokens.new_zeros(1, self.params.max_seq_len)
            self.last = tokens.new_zeros(1)

            def compute():
                h = self.tok_embeddings(self.window)
                for layer in self.layers:
                    h = layer(h, self.freqs_cos, self.freqs_sin)
                return self.output(self.norm(h.index_select(1, self.last)))

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                compute()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = compute()
        self.window[:, :tokens.size(1)] = tokens
        self.last.fill_(tokens.size(1) - 1)
        self.graph.replay()
        return self.logits

"""),
    ("model.py", 325, 325, "            logits = self.next_logits(idx_cond)"),
]
STEPS = 2500
BEFORE = 5
