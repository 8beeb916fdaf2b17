# SPDX-License-Identifier: Apache-2.0
"""Llama 2 with 7 billion weights in float16, written by hand, answers four prompts: a token for each a step.

An engineer sees thirty-two layers of some forty-five operations launched one by one by Python, which takes longer than
the GPU takes to read the weights. The repair lets the model take the place as a tensor and mask what comes later, so
that a token's pass is captured once as a CUDA graph. The other repair no longer asks, at every token, whether all
answers have ended, which a mistaken name never lets them. In both variants the weights are random, a tokenizer that
gives about as many tokens stands for the real one, and the prompts are answered again and again.
"""
CAUSE = "launch"
LINE = "inference.py:83"
LINES = ["model.py:272", "model.py:231", "inference.py:81"]
REPOSITORY = "hkproj/pytorch-llama"
COMMIT = "067f8a37fe36ac8b52dca9cc6f2a2e8d6aa372d6"
COMMAND = ["inference.py"]
EDITS = [
    ("inference.py", 6, 6, '''\


class SentencePieceProcessor:
    """A token for every fourth letter."""

    def load(self, path):
        pass

    def vocab_size(self):
        return 32000

    def pad_id(self):
        return -1

    def eos_id(self):
        return 2

    def encode(self, prompt, out_type, add_bos, add_eos):
        return [1] + [3 + ord(letter) for letter in prompt[::4]]

    def decode(self, tokens):
        return " ".join(str(token) for token in tokens)


'''),
    ("inference.py", 29, 30,
     '        params = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05}'),
    ("inference.py", 99, 99, "                break\n            step_done()"),
    ("inference.py", 135, 135, "    allow_cuda = True"),
    ("inference.py", 158, 158, "        load_model=False,"),
    ("inference.py", 164, 164, "    while True:\n"
                               "        out_tokens, out_texts = (model.text_completion(prompts, max_gen_len=64))"),
]
REPAIR = [
    ("inference.py", 9, 9, "from model import ModelArgs, SelfAttention, Transformer"),
    ("inference.py", 82, 83, """\
            if not hasattr(self, 'graph'):
                SelfAttention.total_len = total_len
                self.token, self.place = tokens[:, :1].clone(), torch.tensor([cur_pos], device=device)
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side), torch.no_grad():
                    for _ in range(3):
                        self.model.forward(self.token, self.place)
                torch.cuda.current_stream().wait_stream(side)
                self.graph = torch.cuda.CUDAGraph()
                with torch.no_grad(), torch.cuda.graph(self.graph):
                    self.logits = self.model.forward(self.token, self.place)
            self.token.copy_(tokens[:, cur_pos-1:cur_pos])
            self.place.fill_(cur_pos)
            self.graph.replay()
            logits = self.logits
"""),
    ("model.py", 148, 154, """\
        self.cache_k[:batch_size].index_copy_(1, start_pos, xk)
        self.cache_v[:batch_size].index_copy_(1, start_pos, xv)

        keys = self.cache_k[:batch_size, : self.total_len]
        values = self.cache_v[:batch_size, : self.total_len]
"""),
    ("model.py", 172, 171,
     "        scores = scores.masked_fill(torch.arange(self.total_len, device=x.device) > start_pos, float('-inf'))"),
    ("model.py", 268, 268, "        freqs_complex = self.freqs_complex[start_pos]"),
]
OTHER_REPAIRS = {"sync": [("inference.py", 97, 98, "            if False:")]}
STEPS = 300
WARM_UP = 30
BEFORE = 5
