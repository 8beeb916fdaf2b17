# SPDX-License-Identifier: Apache-2.0
"""Proximal policy optimization of two tiny networks on four poles to balance; a step is 128 moves and 16 updates.

An engineer sees some twelve thousand operations a step on a few hundred numbers each: two networks of width 64 and a
distribution for every move, a backward recursion over the moves, and updates of 128 rows. The GPU finishes each before
Python launches the next. The repair captures the three parts as CUDA graphs, with an optimizer made for that. The other
repair leaves out the distribution's checks and keeps a statistic on the GPU, which both wait for it. In both variants
the poles are a stand-in for a package that may be missing, the arguments are the defaults and no log is written.
"""
CAUSE = "launch"
LINE = "cleanrl/ppo.py:199"
REPOSITORY = "vwxyzjn/cleanrl"
COMMIT = "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"
COMMAND = ["cleanrl/ppo.py"]
EDITS = [
    ("cleanrl/ppo.py", 7, 7, "import math\nfrom types import SimpleNamespace\n"),
    ("cleanrl/ppo.py", 12, 12, ""),
    ("cleanrl/ppo.py", 14, 14, '''\


class Log:
    """Takes what would be drawn."""

    def add_scalar(self, *_):
        pass

    add_text = add_scalar


class Pole:
    """A cart of one kilogram, pushed left or right every 20 ms, and a pole of one metre and 100 g on it."""

    def __init__(self, random):
        self.random = random
        self.reset()

    def reset(self):
        self.state = self.random.uniform(-0.05, 0.05, 4).tolist()
        self.moves = 0
        return self.state

    def step(self, action):
        x, speed, angle, turn = self.state
        cosine, sine = math.cos(angle), math.sin(angle)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * turn**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        pulling = push - 0.05 * turning * cosine / 1.1
        self.state = [x + 0.02 * speed, speed + 0.02 * pulling, angle + 0.02 * turn, turn + 0.02 * turning]
        self.moves += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180
        late = self.moves == 500
        return self.reset() if fallen or late else self.state, 1.0, fallen, late


class Poles:
    """Several poles, one after another, as the package's synchronous vector of environments does it."""

    single_observation_space = SimpleNamespace(shape=(4,))
    single_action_space = SimpleNamespace(shape=(), n=2)

    def __init__(self, number):
        self.poles = [Pole(np.random.default_rng(i)) for i in range(number)]

    def reset(self, seed):
        return np.array([pole.reset() for pole in self.poles], dtype=np.float32), {}

    def step(self, actions):
        states, rewards, fallen, late = zip(*(pole.step(action) for pole, action in zip(self.poles, actions)))
        return np.array(states, dtype=np.float32), np.array(rewards), np.array(fallen), np.array(late), {}
'''),
    ("cleanrl/ppo.py", 130, 130, "    args = Args()"),
    ("cleanrl/ppo.py", 147, 147, "    writer = Log()"),
    ("cleanrl/ppo.py", 162, 165, "    envs = Poles(args.num_envs)"),
    ("cleanrl/ppo.py", 310, 309, "        step_done()"),
]
REPAIR = [
    ("cleanrl/ppo.py", 123, 126, """\
        probs = Categorical(logits=logits, validate_args=False)
        if action is None:  # as sample() draws, which reads a check back from the GPU
            action = (probs.probs / torch.empty_like(probs.probs).exponential_()).argmax(-1)
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def graphed(function):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()

    def replay():
        graph.replay()
        return results

    return replay
"""),
    ("cleanrl/ppo.py", 168, 168, """\
    rate = torch.tensor(args.learning_rate, device=device)
    optimizer = optim.Adam(agent.parameters(), lr=rate, eps=1e-5, capturable=True)
"""),
    ("cleanrl/ppo.py", 184, 183, """\

    # What the graphs read and write: nothing of it may move from one replay to the next.
    seen = torch.zeros((args.num_envs,) + envs.single_observation_space.shape, device=device)
    last_done = torch.zeros(args.num_envs, device=device)
    chosen = torch.zeros(args.minibatch_size, dtype=torch.long, device=device)
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    b_obs = obs.view((-1,) + envs.single_observation_space.shape)
    b_logprobs, b_actions, b_values = logprobs.view(-1), actions.view(-1), values.view(-1)
    b_advantages, b_returns = advantages.view(-1), returns.view(-1)

    def decide():
        with torch.no_grad():
            return agent.get_action_and_value(seen)

    def estimate():
        with torch.no_grad():
            next_value = agent.get_value(seen).reshape(1, -1)
            lastgaelam = 0
            for t in reversed(range(args.num_steps)):
                if t == args.num_steps - 1:
                    nextnonterminal = 1.0 - last_done
                    nextvalues = next_value
                else:
                    nextnonterminal = 1.0 - dones[t + 1]
                    nextvalues = values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
            returns.copy_(advantages + values)

    def improve():
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[chosen], b_actions.long()[chosen])
        logratio = newlogprob - b_logprobs[chosen]
        ratio = logratio.exp()
        with torch.no_grad():
            old_approx_kl = (-logratio).mean()
            approx_kl = ((ratio - 1) - logratio).mean()
            clipped = ((ratio - 1.0).abs() > args.clip_coef).float().mean()
        mb_advantages = b_advantages[chosen]
        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
        pg_loss1 = -mb_advantages * ratio
        pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
        pg_loss = torch.max(pg_loss1, pg_loss2).mean()
        newvalue = newvalue.view(-1)
        v_loss_unclipped = (newvalue - b_returns[chosen]) ** 2
        change = torch.clamp(newvalue - b_values[chosen], -args.clip_coef, args.clip_coef)
        v_loss_clipped = (b_values[chosen] + change - b_returns[chosen]) ** 2
        v_loss = 0.5 * torch.max(v_loss_unclipped, v_loss_clipped).mean()
        entropy_loss = entropy.mean()
        loss = pg_loss - args.ent_coef * entropy_loss + v_loss * args.vf_coef
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        return v_loss, pg_loss, entropy_loss, old_approx_kl, approx_kl, clipped

    kept = [parameter.detach().clone() for parameter in agent.parameters()]
    decide, estimate, improve = graphed(decide), graphed(estimate), graphed(improve)
    with torch.no_grad():  # the captures took steps of their own
        for parameter, before in zip(agent.parameters(), kept):
            parameter.copy_(before)
            for number in optimizer.state[parameter].values():
                number.zero_()
"""),
    ("cleanrl/ppo.py", 190, 190, "            rate.fill_(lrnow)"),
    ("cleanrl/ppo.py", 197, 200, """\
            seen.copy_(next_obs)
            action, logprob, _, value = decide()
            values[step] = value.flatten()
"""),
    ("cleanrl/ppo.py", 217, 238, """\
        seen.copy_(next_obs)
        last_done.copy_(next_done)
        estimate()
"""),
    ("cleanrl/ppo.py", 250, 290, """\
                chosen.copy_(torch.from_numpy(mb_inds))
                v_loss, pg_loss, entropy_loss, old_approx_kl, approx_kl, clipped = improve()
                clipfracs.append(clipped.clone())
"""),
    ("cleanrl/ppo.py", 300, 300, '        writer.add_scalar("charts/learning_rate", lrnow, global_step)'),
    ("cleanrl/ppo.py", 306, 306,
     '        writer.add_scalar("losses/clipfrac", torch.stack(clipfracs).mean().item(), global_step)'),
]
OTHER_REPAIRS = {"sync": [
    ("cleanrl/ppo.py", 123, 123, "        probs = Categorical(logits=logits, validate_args=False)"),
    ("cleanrl/ppo.py", 258, 258,
     "                    clipfracs += [((ratio - 1.0).abs() > args.clip_coef).float().mean()]"),
    ("cleanrl/ppo.py", 306, 306,
     '        writer.add_scalar("losses/clipfrac", torch.stack(clipfracs).mean().item(), global_step)'),
]}
STEPS = 40
WARM_UP = 4
