"""Actions drawn at random: what a task returns to somebody who has learned nothing."""

from __future__ import annotations

import numpy as np
from measuring import Meter, leave, parse
from vectors import Vector


def main() -> None:
    options = parse(vec="envpool", env_threads=1)
    s, layout = options.settings, options.layout
    random = np.random.default_rng(options.seed)
    envs = Vector(s.env, s.num_envs, options.seed, layout["vec"], layout["env_threads"])
    meter = Meter("random", options, ["envpool", "numpy"])
    space = envs.action_space
    envs.reset()
    env_steps = 0
    while True:
        for _ in range(s.horizon):
            if space.shape:
                actions = random.uniform(space.low, space.high, (s.num_envs, *space.shape))
            else:
                actions = random.integers(space.n, size=s.num_envs)
            _, rewards, ends = envs.step(actions)
            meter.returns.add(rewards, ends)
        env_steps += s.batch
        if meter.update(env_steps):
            break
    leave()


if __name__ == "__main__":
    main()
