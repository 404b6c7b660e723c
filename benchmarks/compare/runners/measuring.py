"""The frame that all runners share: arguments in, one JSON line (or lines of returns) out.

    python run_<peer>.py W1a --seconds 60 --layout vec=envpool threads=1
    python run_<peer>.py cartpole --learn 300000 --seed 3 --settings '{"epochs": 8}'

The first measures speed: environment steps that went through a gradient update, per second of the
window that begins `--warmup` seconds after the first update. The second learns, and prints
`RETURN {"env_steps": ..., "mean": ..., "episodes": ...}` after every update.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from processes import descendants
from workloads import CURVES, EPISODES, WORKLOADS, Settings


class Options(argparse.Namespace):
    """What a runner was asked for."""

    target: str
    seconds: float
    warmup: float
    learn: int
    seed: int
    layout: dict[str, str]
    settings: Settings


def parse(**defaults: object) -> Options:
    """The arguments of this process; `defaults` is the layout where it is not given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=[*WORKLOADS, *CURVES])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup", type=float, default=4.0)
    parser.add_argument("--learn", type=int, default=0, metavar="ENV_STEPS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layout", nargs="*", default=[], metavar="K=V")
    parser.add_argument("--settings", type=json.loads, default={}, metavar="JSON")
    options = parser.parse_args(namespace=Options())
    given = dict(pair.split("=", 1) for pair in options.layout)
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        parser.error(f"--layout: expected some of {sorted(defaults)}, got {unknown}")
    kept = {key: type(value)(given.get(key, value)) for key, value in defaults.items()}
    options.layout = kept
    found = WORKLOADS[options.target] if options.target in WORKLOADS else CURVES[options.target][0]
    options.settings = found.replaced(**options.settings)
    return options


class Returns:
    """The last returns of training episodes, from rewards and ends of a row of environments."""

    def __init__(self, num_envs: int) -> None:
        self.last = collections.deque(maxlen=EPISODES)
        self.episodes = 0
        self._sums = np.zeros(num_envs)

    def add(self, rewards: np.ndarray, ends: np.ndarray) -> None:
        """One step of all environments."""
        self._sums += rewards
        if ends.any():
            for index in ends.nonzero()[0]:
                self.append(self._sums[index])
                self._sums[index] = 0.0

    def append(self, value: float) -> None:
        """One finished episode."""
        self.last.append(float(value))
        self.episodes += 1


class Meter:
    """Sees every update, and says when the measurement or the learning is over."""

    def __init__(self, peer: str, options: Options, packages: list[str]) -> None:
        self.peer = peer
        self.options = options
        self.packages = packages
        self.returns = Returns(options.settings.num_envs)
        self.num_parameters = 0
        self.threads = int(options.layout.get("threads", 0))
        self._first = self._start = None

    def update(self, env_steps: int, at: float | None = None) -> bool:
        """After an update that brought the steps trained on to `env_steps`: whether to stop."""
        now = time.perf_counter() if at is None else at
        if self.options.learn:
            self.report(env_steps)
            return env_steps >= self.options.learn
        if self._first is None:
            self._first = now
        elif self._start is None:
            if now - self._first >= self.options.warmup:
                self._start = (now, env_steps)
        elif now - self._start[0] >= self.options.seconds:
            seconds = now - self._start[0]
            self._print(seconds, (env_steps - self._start[1]) / seconds)
            return True
        return False

    def report(self, env_steps: int) -> None:
        """Prints the mean return, if there is one."""
        last = self.returns.last
        if last:
            mean = sum(last) / len(last)
            self.report_mean(env_steps, mean, self.returns.episodes)

    @staticmethod
    def report_mean(env_steps: int, mean: float, episodes: int) -> None:
        """Prints a mean return."""
        line = {"env_steps": int(env_steps), "mean": round(mean, 3), "episodes": int(episodes)}
        print("RETURN", json.dumps(line), flush=True)

    def _print(self, seconds: float, rate: float) -> None:
        last = self.returns.last
        result = {
            "peer": self.peer,
            "workload": self.options.target,
            "layout": self.options.layout,
            "settings": dataclasses.asdict(self.options.settings),
            "steps_per_second": round(rate, 1),
            "window_seconds": round(seconds, 2),
            "parameters": self.num_parameters,
            "threads": self.threads,
            "return_mean": round(sum(last) / len(last), 2) if last else None,
            "versions": {name: importlib.metadata.version(name) for name in self.packages},
            "python": sys.version.split()[0],
        }
        print(json.dumps(result), flush=True)


def leave() -> None:
    """Ends this process and those it started at once: peers leave some behind that go on."""
    sys.stdout.flush()
    for pid in reversed(descendants(os.getpid())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)
