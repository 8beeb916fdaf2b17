# SPDX-License-Identifier: Apache-2.0
"""Informer foretells a transformer's next day from the two before: 32 windows of 48 hours a step, three layers.

An engineer sees some seven hundred operations a step on 1536 rows of 512 numbers, two or three microseconds each, which
Python cannot launch as fast. Besides, the sparse attention makes its indices on the CPU and the loss is fetched between
forward and backward, so that the GPU runs dry a dozen times. The repair makes indices and masks on the GPU and captures
forward and backward as one CUDA graph. The other repair only stops the waiting: indices on the GPU, losses left there.
In both variants the values are made up.
"""
CAUSE = "launch"
LINE = "exp/exp_informer.py:283"
LINES = ["exp/exp_informer.py:155", "exp/exp_informer.py:173", "models/attn.py:114"]
REPOSITORY = "zhouhaoyi/Informer2020"
COMMIT = "29f2a739226a509202a092b464163da81fa74960"
COMMAND = ["main_informer.py", "--model", "informer", "--data", "ETTh1", "--features", "M", "--seq_len", "48",
           "--label_len", "48", "--pred_len", "24", "--e_layers", "2", "--d_layers", "1", "--attn", "prob",
           "--des", "Exp", "--itr", "5", "--factor", "3"]
EDITS = [
    ("exp/exp_basic.py", 17, 17, ""),
    ("utils/tools.py", 26, 26, "        self.val_loss_min = np.inf"),
]
INDICES = [
    ("models/attn.py", 54, 55, """\
        index_sample = torch.randint(L_K, (L_Q, sample_k), device=K.device) # real U = U_part(factor*ln(L_k))*L_q
        K_sample = K_expand[:, :, torch.arange(L_Q, device=K.device).unsqueeze(1), index_sample, :]
"""),
    ("models/attn.py", 63, 64, """\
        Q_reduce = Q[torch.arange(B, device=Q.device)[:, None, None],
                     torch.arange(H, device=Q.device)[None, :, None],
"""),
    ("models/attn.py", 90, 91, """\
        context_in[torch.arange(B, device=V.device)[:, None, None],
                   torch.arange(H, device=V.device)[None, :, None],
"""),
    ("utils/masking.py", 15, 15, "        _mask = torch.ones(L, scores.shape[-1], dtype=torch.bool, device=device).triu(1)"),
    ("utils/masking.py", 17, 18, """\
        indicator = _mask_ex[torch.arange(B, device=device)[:, None, None],
                             torch.arange(H, device=device)[None, :, None],
"""),
]
REPAIR = INDICES + [
    ("exp/exp_informer.py", 154, 158, """\
                parts = [batch_x, batch_x_mark, batch_y, batch_y_mark]
                if not hasattr(self, 'graph'):
                    self.capture(parts, criterion, model_optim)
                for to, part in zip(self.parts, parts):
                    to.copy_(part.float())
                self.graph.replay()
                loss = self.loss
                train_loss.append(loss.item())
"""),
    ("exp/exp_informer.py", 173, 173, ""),
    ("exp/exp_informer.py", 259, 258, """\
    def capture(self, parts, criterion, model_optim):
        self.parts = [part.float().to(self.device) for part in parts]

        def forward_backward():
            batch_x, batch_x_mark, batch_y, batch_y_mark = self.parts
            true = batch_y[:,-self.args.pred_len:,:]
            dec_inp = torch.cat([batch_y[:,:self.args.label_len,:], torch.zeros_like(true)], dim=1)
            loss = criterion(self.model(batch_x, batch_x_mark, dec_inp, batch_y_mark), true)
            loss.backward()
            return loss.detach()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward_backward()
        torch.cuda.current_stream().wait_stream(side)
        model_optim.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = forward_backward()

"""),
]
OTHER_REPAIRS = {"sync": INDICES + [
    ("exp/exp_informer.py", 158, 158, "                train_loss.append(loss.detach())"),
    ("exp/exp_informer.py", 177, 177, "            train_loss = torch.stack(train_loss).mean().item()"),
]}
STEPS = 200
WARM_UP = 20
BEFORE = 5
