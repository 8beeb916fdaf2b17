# SPDX-License-Identifier: Apache-2.0
"""VideoPose3D learns to lift joints from two to three dimensions: convolutions over 243 frames, 1024 windows a step.

An engineer sees the process that trains cut each of 1024 windows out of a film in Python, mirror half of them with
lists of indices, turn the eight million doubles that come of it into floats, and send those to the GPU from ordinary
memory: some forty milliseconds, and the GPU needs fifteen. The repair keeps the films, which are small, on the GPU, and
cuts and mirrors all windows there with one table of indices. In both variants the films are shorter and made up, and
nothing is tested between epochs, an option of the script.
"""
CAUSE = "host"
LINE = "run.py:401"
LINES = ["common/generators.py:118", "common/generators.py:123", "common/generators.py:140"]
REPOSITORY = "facebookresearch/VideoPose3D"
COMMIT = "1afb1ca0f1237776518469876342fc8669d3f6a9"
COMMAND = ["run.py", "-e", "80", "-k", "cpn_ft_h36m_dbb", "-arc", "3,3,3,3,3", "--no-eval"]
EDITS = []
REPAIR = [
    ("common/generators.py", 9, 9, "import numpy as np\nimport torch"),
    ("common/generators.py", 53, 55, """\
        def join(films, left, right):
            lengths = torch.tensor([len(film) for film in films])
            order = np.arange(films[0].shape[1])
            order[left + right] = right + left
            frames = torch.from_numpy(np.concatenate(films).astype('float32'))
            return [x.cuda() for x in (frames, lengths.cumsum(0) - lengths, lengths, torch.from_numpy(order))]

        if poses_3d is not None:
            self.joined_3d = join(poses_3d, joints_left, joints_right)
        self.joined_2d = join(poses_2d, kps_left, kps_right)
        self.chunk_length = chunk_length
"""),
    ("common/generators.py", 99, 98, """\
    def windows(self, joined, films, first, length, flip):
        frames, starts, lengths, order = joined
        at = (first[:, None] + torch.arange(length, device=first.device)).clamp(min=0)
        at = torch.minimum(at, lengths[films][:, None] - 1)
        batch = frames[starts[films][:, None] + at]
        mirrored = batch[:, :, order]
        mirrored[..., 0] *= -1
        return torch.where(flip[:, None, None, None], mirrored, batch)

"""),
    ("common/generators.py", 105, 149, """\
                films, start_3d, _, flip = torch.from_numpy(np.array(chunks)).cuda().T
                flip = flip.bool()
                self.batch_2d = self.windows(self.joined_2d, films, start_3d - self.pad - self.causal_shift,
                                             self.chunk_length + 2*self.pad, flip)
                if self.poses_3d is not None:
                    self.batch_3d = self.windows(self.joined_3d, films, start_3d, self.chunk_length, flip)
"""),
    ("run.py", 402, 406, "                inputs_3d, inputs_2d = batch_3d, batch_2d"),
]
STEPS = 160
WARM_UP = 10
BEFORE = 3
