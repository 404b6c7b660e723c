"""Says why a run is slow: which part all others wait for, and the one setting to change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec


class WorkerTimes(msgspec.Struct, kw_only=True):
    """Where one worker's time went since it started."""

    kind: str
    """"actor", "policy", "trainer", "evaluator", or a kind of the user's own."""
    name: str
    process: str = ""
    """Workers with the same non-empty process take turns in one thread."""
    busy_seconds: float = 0.0
    waits: dict[str, float] = {}
    """Seconds by what was waited for.

    Actors: inference, slots, policy_age. Policy: requests. Trainer: samples. Evaluator: weights.
    """
    cpu_seconds: float = 0.0
    """Of its process; where several workers share one, each says its own part."""
    counters: dict[str, float] = {}


class Share(msgspec.Struct, frozen=True):
    """Where the time of one worker kind went, as shares of 1."""

    busy: float
    waits: dict[str, float]

    @property
    def longest_wait(self) -> str | None:
        """What it waited for most, if it waited at all."""
        return max(self.waits, key=self.waits.__getitem__) if self.waits else None


class Machine(msgspec.Struct, frozen=True):
    """What the run has to work with."""

    cores: int
    seconds: float
    """Wall time over which the workers' times were taken."""
    used: float = 0.0
    """Share of all cores' time that was in use, by other programs too; 0 where it is not known."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run is not faster."""

    text: str
    """One line for a person."""
    part: str
    """What limits: environments, inference, trainer, slots, policy_age, groups or a worker kind."""
    setting: str | None = None
    """The one setting to change, as `--set` takes it, or None where none would help."""
    cores_full: bool = False
    details: dict[str, float] = {}
    """Shares behind the text: `<kind>.busy`, `<kind>.wait.<name>`, `cores`."""


def shares(times: list[WorkerTimes], seconds: float) -> dict[str, Share]:
    """The share of time that each worker kind was busy or waited, over `seconds` of wall time.

    A worker alone in its process is always either busy or waiting, so the shares are of the time it
    lived; one that shares a process also stands still while the others run, so its shares are of
    the wall time.
    """
    crowd: dict[str, int] = defaultdict(int)
    for worker in times:
        crowd[worker.process] += 1
    whole: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    waits: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for worker in times:
        lived = worker.busy_seconds + sum(worker.waits.values())
        if worker.process and crowd[worker.process] > 1:
            lived = max(lived, seconds)
        whole[worker.kind] += lived
        busy[worker.kind] += worker.busy_seconds
        for name, waited in worker.waits.items():
            waits[worker.kind][name] += waited
    return {
        kind: Share(busy[kind] / lived, {n: s / lived for n, s in waits[kind].items() if s > 0})
        for kind, lived in whole.items()
        if lived > 0
    }


def since(now: list[WorkerTimes], before: list[WorkerTimes]) -> list[WorkerTimes]:
    """What was added to `now` after `before`; a worker that started anew counts from zero."""
    old = {worker.name: worker for worker in before}
    result = []
    for worker in now:
        last = old.get(worker.name)
        if last is None or worker.busy_seconds < last.busy_seconds:
            result.append(worker)
            continue
        result.append(
            WorkerTimes(
                kind=worker.kind,
                name=worker.name,
                process=worker.process,
                busy_seconds=worker.busy_seconds - last.busy_seconds,
                waits={k: max(v - last.waits.get(k, 0.0), 0.0) for k, v in worker.waits.items()},
                cpu_seconds=max(worker.cpu_seconds - last.cpu_seconds, 0.0),
                counters={k: v - last.counters.get(k, 0.0) for k, v in worker.counters.items()},
            )
        )
    return result


FULL = 0.9
"""Share of all cores' time above which nothing runs faster by being given more."""
WAITS = 0.25
"""Share of waiting worth removing: without it a run is a third faster."""
WORTH = 1.3
"""The least by which a run gets faster for a setting to be advised."""
BUSY = 0.5
SMALL_STEP_SECONDS = 0.01
"""A minibatch below this is not worth splitting: threads then cost more than they give."""


def diagnose(times: list[WorkerTimes], machine: Machine, settings: Mapping[str, Any]) -> Diagnosis:
    """Names the part that all others wait for, and the setting that gives it more room.

    Asked in this order: does one thread do everything? does the trainer ever wait? do the actors
    and the trainer wait for each other in turn? if not, what do the actors wait for?
    """
    return _Finder(times, machine, settings).find()


class _Finder:
    """The numbers of one diagnosis, and the questions asked of them."""

    def __init__(
        self, times: list[WorkerTimes], machine: Machine, settings: Mapping[str, Any]
    ) -> None:
        self.times, self.machine, self.settings = times, machine, settings
        self.shares = shares(times, machine.seconds)
        available = machine.cores * machine.seconds
        self.cores = sum(w.cpu_seconds for w in times) / available if available > 0 else 0.0
        self.used = max(self.cores, machine.used)
        self.cores_full = self.used > FULL

    def find(self) -> Diagnosis:
        """Asks one question after another."""
        actor, trainer = self.shares.get("actor"), self.shares.get("trainer")
        if actor is None or trainer is None:
            return self._busiest()
        if self._together("actor", "trainer"):
            return self._one_thread()
        samples = trainer.waits.get("samples", 0.0)
        if samples < WAITS:
            return self._trainer(trainer, actor)
        slots, age = actor.waits.get("slots", 0.0), actor.waits.get("policy_age", 0.0)
        if slots + age >= WAITS:
            return self._between(samples) or self._in_turn(samples, slots, age)
        inference = actor.waits.get("inference", 0.0)
        if inference >= WAITS and not self._together("actor", "policy"):
            return self._inference(samples, inference)
        return self._environments(samples)

    def _one_thread(self) -> Diagnosis:
        kind, share = max(self.shares.items(), key=lambda item: item[1].busy)
        text = f"all workers take turns in one thread; {_doing(kind)} {_percent(share.busy)} of it"
        if self.machine.cores == 1:
            return self._answer(f"{text}, and there is only one core", _part(kind), full=True)
        return self._answer(
            f"{text}; spread them over processes (--layout inline)", _part(kind), "layout=inline"
        )

    def _trainer(self, trainer: Share, actor: Share) -> Diagnosis:
        blocked = actor.waits.get("slots", 0.0) + actor.waits.get("policy_age", 0.0)
        text = f"trainer is busy {_percent(trainer.busy)} of the time"
        if blocked >= 0.05:
            text += f" and actors wait for it {_percent(blocked)}: the trainer is the limit"
        else:
            text += f", actors {_percent(actor.busy)}: neither waits much for the other"
        threads = self._number("trainer.threads", 1)
        workers = [w for w in self.times if w.kind == "trainer"]
        busy, cpu = sum(w.busy_seconds for w in workers), sum(w.cpu_seconds for w in workers)
        if not self.cores_full and 0 < cpu < 0.3 * busy:
            text += "; it waits for its device, not for a core: fewer epochs or a smaller network"
            return self._answer(text, "trainer")
        minibatches = sum(w.counters.get("minibatches", 0) for w in workers)
        if not self.cores_full and minibatches and busy / minibatches < SMALL_STEP_SECONDS:
            text += (
                f"; its steps of {1000 * busy / minibatches:.1f} ms are too small to share between "
                "threads: fewer epochs or larger minibatches, if learning allows"
            )
            return self._answer(text, "trainer")
        more = min(max(self.machine.cores, 1), threads * 2)
        if not self.cores_full and (threads < 1 or more <= threads):
            text += "; it has a thread for every core: fewer epochs or a smaller network"
            return self._answer(text, "trainer")
        return self._change(text, "trainer", "give it more threads", "trainer.threads", more)

    def _between(self, samples: float) -> Diagnosis | None:
        """A worker of another kind that both sides wait for."""
        others = {
            kind: share
            for kind, share in self.shares.items()
            if kind not in ("actor", "policy", "trainer", "evaluator") and share.busy >= 1 - WAITS
        }
        if not others:
            return None
        kind = max(others, key=lambda name: others[name].busy)
        text = (
            f"trainer waits for samples {_percent(samples)} of the time while {kind} is busy "
            f"{_percent(others[kind].busy)}: {kind} is the limit"
        )
        key = f"{kind}.count"
        if key not in self.settings:
            return self._answer(text, kind)
        return self._change(text, kind, "add workers", key, 2 * self._number(key, 1))

    def _in_turn(self, samples: float, slots: float, age: float) -> Diagnosis:
        waited = "free slots" if slots >= age else "newer weights (policy_age)"
        text = (
            f"actors wait for {waited} {_percent(max(slots, age))} of the time while the trainer "
            f"waits for samples {_percent(samples)}: "
        )
        if slots >= age:
            more = 2 * self._number("sample.slots", 4)
            return self._change(text + "too few slots", "slots", "add slots", "sample.slots", more)
        more = self._number("algorithm.max_policy_age", 0) + 1
        text += "they run in turn"
        how = "let samples be older, or use more groups"
        return self._change(text, "policy_age", how, "algorithm.max_policy_age", more)

    def _inference(self, samples: float, inference: float) -> Diagnosis:
        policy = self.shares.get("policy", Share(0.0, {}))
        text = (
            f"trainer waits for samples {_percent(samples)} of the time and actors for inference "
            f"{_percent(inference)}, policy workers are busy {_percent(policy.busy)}: "
        )
        if policy.busy >= BUSY:
            more = 2 * self._number("inference.count", 1)
            text += "inference is the limit"
            how = "add policy workers"
            return self._change(text, "inference", how, "inference.count", more)
        # Nobody works while requests travel: more groups per actor fill the time.
        more = 2 * self._number("actor.groups", 1)
        text += "round trips are the limit"
        return self._change(text, "groups", "step more groups in turn", "actor.groups", more)

    def _environments(self, samples: float) -> Diagnosis:
        inside = self._inference_inside()
        what = "environments are the limit"
        if inside is not None:
            what = f"actors are the limit ({_percent(inside)} of their work is inference)"
        text = f"trainer waits for samples {_percent(samples)} of the time: {what}"
        part = "inference" if inside is not None and inside > 0.5 else "environments"
        count, envs = self._number("actor.count", 1), self._number("actor.envs", 0)
        larger = [n for n in range(2 * count, envs + 1) if envs % n == 0]
        if envs == 0 or larger:
            more = larger[0] if larger else 2 * count
            if not self.cores_full and self._gain_of_actors(more / count, inside or 0.0) < WORTH:
                used = f"{_percent(self.used)} of {self.machine.cores} cores are in use"
                dearer = " and smaller groups make inference dearer" if inside else ""
                return self._answer(f"{text}; more actors would not help: {used}{dearer}", part)
            return self._change(text, part, "add actors", "actor.count", more)
        return self._change(text, part, "step more at once", "actor.envs", 2 * envs)

    def _gain_of_actors(self, times: float, inference: float) -> float:
        """How much faster `times` as many actors could be, with the same environments among them.

        Each infers for smaller groups: a small network's forward pass takes as long for half of the
        rows. So inference costs up to `times` as much, and the cores must have room for that.
        """
        available = self.machine.cores * self.machine.seconds
        together = {w.process for w in self.times if w.kind == "actor"}
        cpu = sum(w.cpu_seconds for w in self.times if w.process in together)
        actors = min(cpu / available, self.used) if available > 0 else 0.0
        needed = actors * (1 + inference * (times - 1)) + self.used - actors
        return min(times, 1 / needed) if needed > 0 else times

    def _busiest(self) -> Diagnosis:
        if not self.shares:
            return self._answer("nothing has been measured yet", "unknown")
        kind, share = max(self.shares.items(), key=lambda item: item[1].busy)
        text = f"{_doing(kind)} {_percent(share.busy)} of the time"
        return self._answer(text, _part(kind))

    def _inference_inside(self) -> float | None:
        """How much of the actors' work is inference, where it happens inside them."""
        actors = [w for w in self.times if w.kind == "actor"]
        own = sum(w.busy_seconds for w in actors)
        counted = sum(w.counters.get("inference_seconds", 0.0) for w in actors)
        if counted > 0 and own > 0:
            return min(counted / own, 1.0)
        if not self._together("actor", "policy"):
            return None
        inference = sum(w.busy_seconds for w in self.times if w.kind == "policy")
        return inference / (own + inference) if own + inference > 0 else None

    def _together(self, kind: str, other: str) -> bool:
        """Whether workers of both kinds take turns in one process."""
        processes = {w.process for w in self.times if w.kind == kind and w.process}
        return any(w.kind == other and w.process in processes for w in self.times)

    def _number(self, key: str, default: int) -> int:
        value = self.settings.get(key)
        try:
            return int(value) if value is not None else default
        except (TypeError, ValueError):
            return default

    def _change(self, text: str, part: str, how: str, key: str, value: int) -> Diagnosis:
        if self.cores_full:
            used = f"the cores are full ({_percent(self.used)} of {self.machine.cores} in use"
            if self.used - self.cores > 0.1:
                used += f", {_percent(self.used - self.cores)} by other programs"
            used += ")"
            return self._answer(f"{text}, and {used}: only more cores help", part, full=True)
        setting = f"{key}={value}"
        if self.used * WORTH > 1:
            # Whatever is waited for now, the cores soon would be.
            used = f"{_percent(self.used)} of {self.machine.cores} cores are in use"
            return self._answer(f"{text}; {key} would gain little: {used}", part)
        return self._answer(f"{text}; {how} (--set {setting})", part, setting)

    def _answer(
        self, text: str, part: str, setting: str | None = None, *, full: bool = False
    ) -> Diagnosis:
        details = {"cores": self.cores}
        for kind, share in self.shares.items():
            details[f"{kind}.busy"] = share.busy
            details.update((f"{kind}.wait.{name}", s) for name, s in share.waits.items())
        full = full or self.cores_full
        return Diagnosis(text=text, part=part, setting=setting, cores_full=full, details=details)


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f} %"


def _part(kind: str) -> str:
    return {"actor": "environments", "policy": "inference"}.get(kind, kind)


def _doing(kind: str) -> str:
    names = {"actor": "environments take", "policy": "inference takes"}
    return names.get(kind, f"{kind} takes")
