# SPDX-License-Identifier: Apache-2.0
"""TD3 learns to move with six joints: a decision, a move of the simulator and an update from 256 remembered moves a step.

An engineer sees five small networks of width 256 worked on by some three hundred operations a step, each done in two or
three microseconds, which Python cannot launch as fast; copies of a decision and of five small arrays come on top. The
repair captures the two updates as CUDA graphs. The other repair copies what was remembered in one piece instead of five.
In both variants the simulator is a stand-in for a package that may be missing, and nothing is tested in between.
"""
CAUSE = "launch"
LINE = "TD3.py:126"
REPOSITORY = "sfujim/TD3"
COMMIT = "34770ccdcb51df6f6c7d85c1ba7e40d71b940d16"
COMMAND = ["main.py"]
EDITS = [
    ("main.py", 3, 3, '''\
from types import SimpleNamespace


class Numbers:
    """A box of numbers between -1 and 1."""

    def __init__(self, size):
        self.shape, self.high = (size,), np.ones(size)

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def sample(self):
        return self.random.uniform(-1, 1, self.shape)


class Runner:
    """As many numbers as the simulated animal's, with no more physics than to stay finite."""

    _max_episode_steps = 1000
    observation_space, action_space = Numbers(17), Numbers(6)

    def seed(self, seed):
        self.random = np.random.default_rng(seed)
        self.turn = self.random.normal(size=(17, 17)) / 4
        self.push = self.random.normal(size=(17, 6)) / 2

    def reset(self):
        self.moves, self.state = 0, self.random.normal(size=17) / 10
        return self.state

    def step(self, action):
        self.moves += 1
        self.state = np.tanh(self.turn @ self.state + self.push @ action)
        return self.state, self.state[8] - 0.1 * np.square(action).sum(), self.moves == self._max_episode_steps, {}


gym = SimpleNamespace(make=lambda name: Runner())
'''),
    ("main.py", 105, 105, ""),
    ("main.py", 137, 137, "\t\t\tpolicy.train(replay_buffer, args.batch_size)\n\t\t\tstep_done()"),
    ("main.py", 149, 152, ""),
]
REPAIR = [
    ("TD3.py", 83, 83, "\t\trate = {'lr': 3e-4, 'capturable': True}\n"
                       "\t\tself.actor_optimizer = torch.optim.Adam(self.actor.parameters(), **rate)"),
    ("TD3.py", 87, 87, "\t\tself.critic_optimizer = torch.optim.Adam(self.critic.parameters(), **rate)"),
    ("TD3.py", 104, 108, """\
	def graphed(self, function):
		side = torch.cuda.Stream()
		side.wait_stream(torch.cuda.current_stream())
		with torch.cuda.stream(side):
			for _ in range(3):
				function()
		torch.cuda.current_stream().wait_stream(side)
		graph = torch.cuda.CUDAGraph()
		with torch.cuda.graph(graph):
			function()
		return graph


	def train(self, replay_buffer, batch_size=256):
		self.total_it += 1
		fresh = replay_buffer.sample(batch_size)
		if self.total_it == 1:
			self.batch = [part.clone() for part in fresh]
			self.critic_graph = self.graphed(self.improve_critic)
			self.actor_graph = self.graphed(self.improve_actor)
		for to, part in zip(self.batch, fresh):
			to.copy_(part)
		self.critic_graph.replay()
		if self.total_it % self.policy_freq == 0:
			self.actor_graph.replay()


	def improve_critic(self):
		state, action, next_state, reward, not_done = self.batch
"""),
    ("TD3.py", 136, 137, "\n\tdef improve_actor(self):\n\t\tif True:\n\t\t\tstate = self.batch[0]"),
]
OTHER_REPAIRS = {"copy": [("utils.py", 34, 40, """\
		parts = (self.state[ind], self.action[ind], self.next_state[ind], self.reward[ind], self.not_done[ind])
		together = torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32)).to(self.device)
		return [part.contiguous() for part in together.split([part.shape[1] for part in parts], dim=1)]
""")]}
STEPS = 5000
WARM_UP = 200
BEFORE = 10
