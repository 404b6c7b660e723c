"""Environments, policies and algorithms that go wrong, for worker processes to import."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box

from srl.algorithms.ppo.learner import PPO
from srl.graph import Graph, WorkerGroup
from srl.policies.actor_critic import ActorCritic
from srl.testing.envs import ScriptedEnv
from srl.workers.relabeller import Relabeller


class MarkedHangingEnv(ScriptedEnv):
    """Leaves a file and then hangs, at a step of its life."""

    def __init__(self, *, mark: str, at_step: int = 100, **script: Any) -> None:
        super().__init__(**script)
        self.mark, self.at_step, self.num_steps = Path(mark), at_step, 0

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == self.at_step:
            self.mark.touch()
            time.sleep(3600.0)
        return super().step(action)


class HangingInitEnv(ScriptedEnv):
    """Leaves a file and then hangs while it is made."""

    def __init__(self, *, mark: str = "", **script: Any) -> None:
        super().__init__(**script)
        if mark:
            Path(mark).touch()
        time.sleep(3600.0)


class TalkingEnv(ScriptedEnv):
    """Prints at every beginning of an episode."""

    def reset(self, **arguments: Any) -> Any:
        print("an episode begins", flush=True)
        return super().reset(**arguments)


class DistantEnv(ScriptedEnv):
    """Takes numbers that a new policy does not choose."""

    def __init__(self, **script: Any) -> None:
        super().__init__(**script)
        self.action_space = Box(10.0, 20.0, (1,))

    def step(self, action: Any) -> Any:
        assert action == 10.0
        return super().step(0)


class StatelessEnv(ScriptedEnv):
    """An environment that offers no state, so that its episodes start anew after a resume."""

    state = None
    restore = None


class WrongActionPolicy(ActorCritic):
    """Returns one action too few."""

    def act(self, *args: Any) -> Any:
        act = super().act(*args)
        return act._replace(action=act.action[:-1])


class WrongExtrasPolicy(ActorCritic):
    """Returns values of another shape than it declares."""

    def act(self, *args: Any) -> Any:
        act = super().act(*args)
        return act._replace(extras={**act.extras, "value": act.extras["value"][:, None]})


class RaisingPolicy(ActorCritic):
    """Raises something of its own."""

    def act(self, *args: Any) -> Any:
        raise RuntimeError("RaisingPolicy raises on purpose")


class FailingEnv(ScriptedEnv):
    """Raises something of its own."""

    def step(self, action: Any) -> Any:
        raise FileNotFoundError("FailingEnv raises on purpose")


class ExitingEnv(ScriptedEnv):
    """Ends the program, as a script would."""

    def step(self, action: Any) -> Any:
        raise SystemExit("ExitingEnv raises on purpose")


class RaisingLoss(PPO):
    """Raises something of its own."""

    handles_stale_samples = True

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        raise FileNotFoundError("RaisingLoss raises on purpose")


class RaisingRelabeller(Relabeller):
    """Raises something of its own."""

    def relabel(self, *args: Any) -> None:
        raise KeyError("RaisingRelabeller raises on purpose")


def relabelled(graph: Graph) -> Graph:
    """A dataflow with a worker that raises."""
    group = WorkerGroup(kind=f"{__file__}:RaisingRelabeller")
    return graph.insert("relabeller", group, into="default")


class UnbuildablePolicy(ActorCritic):
    """Raises while it is made."""

    def __init__(self, *args: Any) -> None:
        raise ValueError("no such network")


class PolicyThatHangsFirst(ActorCritic):
    """Hangs when it is made for the first time, and leaves the number of that process in a file,
    which an environment variable names."""

    def __init__(self, *args: Any) -> None:
        with suppress(FileExistsError), open(os.environ["FIRST_MAKER"], "x") as file:
            file.write(f"{os.getpid()}.")
            file.flush()
            time.sleep(1e6)
        super().__init__(*args)


class SlowPolicy(ActorCritic):
    """Waits with every batch that it answers, as for a device elsewhere."""

    def act(self, *args: Any) -> Any:
        time.sleep(0.03)
        return super().act(*args)


class NanLoss(PPO):
    """Learns well until its fifth update."""

    handles_stale_samples = True

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        loss, *rest = super().loss(*args, **kwargs)
        return (loss * (torch.nan if self.num_updates >= 4 else 1.0), *rest)


class SlowLearner(PPO):
    """Takes its time for every minibatch, without computing."""

    handles_stale_samples = True

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.3)
        return super().loss(*args, **kwargs)


class OnceSlowLearner(PPO):
    """Computes for several seconds of a core in its fourth update."""

    handles_stale_samples = True
    was_slow = False

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.num_updates == 3 and not self.was_slow:
            self.was_slow = True
            end = time.process_time() + 4.0
            while time.process_time() < end:
                torch.ones(64, 64) @ torch.ones(64, 64)
        return super().loss(*args, **kwargs)


class ComputingLearner(PPO):
    """Multiplies large matrices for every minibatch: work that threads can share."""

    handles_stale_samples = True

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        matrix = torch.ones(2048, 2048)
        for _ in range(4):
            matrix = matrix @ matrix / 2048
        return super().loss(*args, **kwargs)


class BurstyEnv(ScriptedEnv):
    """Every second run of `length` steps is slow, and the others take no time."""

    def __init__(self, *, length: int, seconds: float = 0.6) -> None:
        super().__init__(min_length=100_000, max_length=100_000)
        self.length, self.pause, self.num_steps = length, seconds / length, 0

    def step(self, action: Any) -> Any:
        if self.num_steps // self.length % 2:
            time.sleep(self.pause)
        self.num_steps += 1
        return super().step(action)


class RarelyCrashingEnv(ScriptedEnv):
    """Raises once in a while: at a step of its life that differs from life to life."""

    def __init__(self, *, every: int = 400) -> None:
        super().__init__()
        self.steps_left = every // 2 + time.monotonic_ns() // 1000 % every

    def step(self, action: Any) -> Any:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise RuntimeError("crashes now and then")
        return super().step(action)


class OnceHangingEnv(ScriptedEnv):
    """Hangs at a step of its life, but only the first one to come there does."""

    def __init__(self, *, mark: str, at_step: int = 400) -> None:
        super().__init__()
        self.mark, self.at_step, self.num_steps = Path(mark), at_step, 0

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == self.at_step and not self.mark.exists():
            self.mark.touch()
            time.sleep(3600.0)
        return super().step(action)


class OnceStallingEnv(ScriptedEnv):
    """Stalls at a step of its life until a file is there, but only the first one to come there
    does. It leaves its process's number in a file."""

    def __init__(self, *, mark: str, at_step: int = 400) -> None:
        super().__init__()
        self.mark, self.at_step, self.num_steps = Path(mark), at_step, 0

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == self.at_step:
            with suppress(FileExistsError), self.mark.open("x") as file:
                file.write(f"{os.getpid()}\n")
                file.flush()
                while not self.mark.with_suffix(".over").exists():
                    time.sleep(0.05)
        return super().step(action)
