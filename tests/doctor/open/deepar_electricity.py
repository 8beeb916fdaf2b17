# SPDX-License-Identifier: Apache-2.0
"""DeepAR learns to foresee what households use: an LSTM of three layers, 64 windows of 192 hours a step, Adam.

An engineer sees a window walked through hour by hour: for each hour some sixty operations forwards and a hundred
backwards, each done in two or three microseconds, thirty thousand a step, with several waits for the GPU an hour
because values that may be missing are asked for and picked out. The repair picks without waiting, by a mask, and
captures the window, forwards and backwards, as one CUDA graph. The other repair only picks without waiting. In both
variants consumption is made up, none of it missing, and nothing is tested in between.
"""
CAUSE = "launch"
LINE = "train.py:75"
LINES = ["train.py:78", "train.py:70", "model/net.py:64"]
REPOSITORY = "zhykoties/TimeSeries"
COMMIT = "b12b13c8250a096e38882d258213abd6c2d78c43"
COMMAND = ["train.py"]
EDITS = [
    ("train.py", 82, 85, ""),
]
window = '''\
    def window(train_batch, idx, labels_batch):
        batch_size = labels_batch.shape[1]
        loss = torch.zeros(1, device=params.device)
        hidden = model.init_hidden(batch_size)
        cell = model.init_cell(batch_size)
        for t in range(params.train_window):
            now = train_batch[t]
            if t > 0:
                now = torch.cat((torch.where(now[:, :1] == 0, mu[:, None], now[:, :1]), now[:, 1:]), dim=1)
            mu, sigma, hidden, cell = model(now.unsqueeze(0), idx, hidden, cell)
            loss = loss + loss_fn(mu, sigma, labels_batch[t])
        return loss

'''
likelihood = ("model/net.py", 125, 127, """\
    distribution = torch.distributions.normal.Normal(mu, sigma, validate_args=False)
    likelihood = torch.where(zero_index, distribution.log_prob(labels), 0.0)
    return -likelihood.sum() / zero_index.sum()
""")
REPAIR = [
    ("train.py", 52, 51, window + "    graph = None\n"),
    ("train.py", 59, 59, ""),
    ("train.py", 66, 80, """\
        batch = (train_batch, idx, labels_batch)
        if graph is None:
            given = [part.clone() for part in batch]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    optimizer.zero_grad()
                    window(*given).backward()
            torch.cuda.current_stream().wait_stream(side)
            optimizer.zero_grad()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                summed = window(*given)
                summed.backward()
        for to, part in zip(given, batch):
            to.copy_(part)
        graph.replay()
        optimizer.step()
        loss = summed.item() / params.train_window
"""),
    likelihood,
]
OTHER_REPAIRS = {"sync": [
    ("train.py", 52, 51, window),
    ("train.py", 66, 76, "        loss = window(train_batch, idx, labels_batch)"),
    likelihood,
]}
STEPS = 60
WARM_UP = 4
BEFORE = 2
