# SPDX-License-Identifier: Apache-2.0
"""A decision transformer learns to hop from recorded episodes: 64 pieces of 20 moves a step, a small GPT-2, AdamW.

An engineer sees the GPU wait for each batch to be put together in Python: for each of 64 pieces the rewards to come are
added up one by one, from the end of an episode of some five hundred moves, and thirty small arrays are made. That takes
about as long as all else, or longer; nothing overlaps, because the loss is fetched in every step. The repair adds up
the rewards of all episodes once, before training, and takes all pieces of a batch with one index. The other repair does
not wait: losses stay on the GPU, and padded moves are masked instead of picked out. In both variants the episodes are
made up, there is no simulator to try the network in, and the network's own copy of GPT-2 fits current packages.
"""
CAUSE = "host"
LINE = "gym/experiment.py:141"
LINES = ["gym/experiment.py:22", "gym/decision_transformer/training/seq_trainer.py:10", "gym/experiment.py:127"]
REPOSITORY = "kzl/decision-transformer"
COMMIT = "e2d82e68f330c00f763507b3b01d774740bee53f"
FOLDER = "gym"
COMMAND = ["experiment.py", "--env", "hopper", "--dataset", "medium", "--model_type", "dt"]
EDITS = [
    ("gym/experiment.py", 1, 1, """\
from types import SimpleNamespace

gym = SimpleNamespace(make=lambda name: SimpleNamespace(observation_space=SimpleNamespace(shape=(11,)),
                                                        action_space=SimpleNamespace(shape=(3,))))
"""),
    ("gym/experiment.py", 4, 4, ""),
    ("gym/experiment.py", 278, 278, "        outputs = trainer.train_iteration(num_steps=10**9)"),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 27, 45, """\
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.pytorch_utils import Conv1D
from transformers.utils import ModelOutput, logging
"""),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 343, 343, "class GPT2PreTrainedModel(nn.Module):"),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 353, 354, """\
    def __init__(self, config):
        super().__init__()
        self.config, self.dtype = config, torch.float32

    def init_weights(self):
        self.apply(self._init_weights)
"""),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 512, 515, ""),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 523, 523,
     "        self.h = nn.ModuleList([Block(config.n_positions, config, scale=True) for _ in range(config.n_layer)])"),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 539, 539, ""),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 559, 559, ""),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 585, 591, ""),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 613, 613, "        return_dict = True"),
    ("gym/decision_transformer/models/trajectory_gpt2.py", 676, 676, "        head_mask = [None] * self.config.n_layer"),
]
REPAIR = [("gym/experiment.py", 118, 154, """\
    flat = {key: np.concatenate([path[key] for path in trajectories])
            for key in ('actions', 'rewards', 'terminals')}
    flat_togo = np.concatenate([np.cumsum(path['rewards'][::-1])[::-1] for path in trajectories])
    starts = np.cumsum(traj_lens) - traj_lens

    def get_batch(batch_size=256, max_len=K):
        batch_inds = np.random.choice(
            np.arange(num_trajectories),
            size=batch_size,
            replace=True,
            p=p_sample,  # reweights so we sample according to timesteps
        )
        chosen = sorted_inds[batch_inds]
        lens = traj_lens[chosen][:, None]
        si = np.array([[random.randint(0, n - 1)] for n in lens[:, 0]])
        tlen = np.minimum(max_len, lens - si)
        when = si + np.arange(max_len + 1) - (max_len - tlen)  # one more than the piece is long: rewards to come
        there = (when >= si) & (when < lens)
        where = starts[chosen][:, None] + np.clip(when, 0, lens - 1)
        rtg = np.where(there, flat_togo[where], 0.)[:, :, None] / scale
        when, there, where = when[:, :-1], there[:, :-1], where[:, :-1]
        s = (np.where(there[:, :, None], states[where], 0.) - state_mean) / state_std
        a = np.where(there[:, :, None], flat['actions'][where], -10.)
        r = np.where(there, flat['rewards'][where], 0.)[:, :, None]
        d = np.where(there, flat['terminals'][where], 2)
        timesteps = np.where(there, np.minimum(when, max_ep_len - 1), 0)
        mask = there.astype(float)
"""), ("gym/experiment.py", 156, 162, """\
        s = torch.from_numpy(s).to(dtype=torch.float32, device=device)
        a = torch.from_numpy(a).to(dtype=torch.float32, device=device)
        r = torch.from_numpy(r).to(dtype=torch.float32, device=device)
        d = torch.from_numpy(d).to(dtype=torch.long, device=device)
        rtg = torch.from_numpy(rtg).to(dtype=torch.float32, device=device)
        timesteps = torch.from_numpy(timesteps).to(dtype=torch.long, device=device)
        mask = torch.from_numpy(mask).to(device=device)
""")]
OTHER_REPAIRS = {"sync": [("gym/decision_transformer/training/seq_trainer.py", 17, 34, """\
        act_dim = action_preds.shape[2]
        there = (attention_mask > 0).unsqueeze(-1)
        loss = torch.where(there, (action_preds - action_target)**2, 0.).sum() / (there.sum() * act_dim)

        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), .25)
        self.optimizer.step()

        self.diagnostics['training/action_error'] = loss.detach()
        return loss.detach()
""")]}
STEPS = 300
WARM_UP = 20
