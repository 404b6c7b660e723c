"""Says why a run is slow: the part that all others wait for, and the one setting to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from srl.services.worker_times import Share, WorkerTimes, shares


class Machine(msgspec.Struct, frozen=True):
    """The cores of the machine, and how much of them was in use."""

    cores: int
    seconds: float
    """Wall time in which the workers' times were measured."""
    used: float = 0.0
    """Share of all cores' time that was in use, by other programs too; 0 if it is not known."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run is not faster, in words and in numbers."""

    text: str
    """One line for people to read."""
    part: str
    """The limiting part: environments, inference, trainer, slots, policy_age, groups or a worker
    kind."""
    setting: str | None = None
    """The one setting to change, as `--set` takes it; None if no setting would help."""
    cores_full: bool = False
    """Whether almost all of the cores' time is in use, so that only more cores would help."""
    details: dict[str, float] = {}
    """The shares behind the text: `<kind>.busy`, `<kind>.wait.<name>`, `cores`."""


FULL_SHARE = 0.9
"""Above this share of all cores' time, more threads or workers make nothing faster."""
MIN_WAIT = 0.25
"""Smallest share of waiting that is worth removing: without it a run is a third faster."""
MIN_GAIN = 1.3
"""Smallest speed-up for which a setting is advised."""
BUSY_SHARE = 0.5
"""Policy workers that are busy for this share of the time are the limit of inference."""
SMALL_STEP_SECONDS = 0.01
"""A shorter minibatch step is not worth more threads: they cost more time than they save."""


def diagnose(times: list[WorkerTimes], machine: Machine, settings: Mapping[str, Any]) -> Diagnosis:
    """Names the part that all others wait for, and the setting that makes it faster.

    The questions, in this order: Does one thread do everything? Does the trainer ever wait? Do
    actors and trainer wait for each other in turn? If not, what do the actors wait for?
    """
    return _Finder(times, machine, settings).find()


class _Finder:
    """Makes one diagnosis: holds its numbers, with a method for each question."""

    def __init__(
        self, times: list[WorkerTimes], machine: Machine, settings: Mapping[str, Any]
    ) -> None:
        self.times, self.machine, self.settings = times, machine, settings
        self.shares = shares(times, machine.seconds)
        available = machine.cores * machine.seconds
        self.cores = sum(w.cpu_seconds for w in times) / available if available > 0 else 0.0
        self.used = max(self.cores, machine.used)
        self.cores_full = self.used > FULL_SHARE

    def find(self) -> Diagnosis:
        """Asks one question after another, until one gives the answer."""
        actor, trainer = self.shares.get("actor"), self.shares.get("trainer")
        if trainer is None:
            return self._busiest()
        if self._in_one_process():
            return self._one_thread()
        beside = [kind for kind in self.shares if self._share_process(kind, "trainer")]
        if len(beside) > 1 and sum(self.shares[kind].busy for kind in beside) >= 1 - MIN_WAIT:
            return self._taking_turns(beside)
        samples = trainer.waits.get("samples", 0.0)
        if samples < MIN_WAIT:
            return self._trainer(trainer, actor)
        if actor is None:
            return self._other_worker(samples) or self._busiest()
        slots, age = actor.waits.get("slots", 0.0), actor.waits.get("policy_age", 0.0)
        if slots + age >= MIN_WAIT:
            return self._other_worker(samples) or self._in_turn(samples, slots, age)
        inference = actor.waits.get("inference", 0.0)
        if inference >= MIN_WAIT and not self._share_process("actor", "policy"):
            return self._inference(samples, inference)
        return self._environments(samples)

    def _one_thread(self) -> Diagnosis:
        kind, share = max(self.shares.items(), key=lambda item: item[1].busy)
        text = f"all workers take turns in one thread; {_takes(kind)} {_percent(share.busy)} of it"
        if self.machine.cores == 1:
            return self._answer(f"{text}, and there is only one core", _part(kind), full=True)
        return self._answer(
            f"{text}; spread them over processes (--layout inline)", _part(kind), "layout=inline"
        )

    def _taking_turns(self, beside: list[str]) -> Diagnosis:
        kind = max(beside, key=lambda name: self.shares[name].busy)
        text = (
            f"{' and '.join(sorted(beside))} take turns in one process; "
            f"{_takes(kind)} {_percent(self.shares[kind].busy)} of it"
        )
        key = "algorithm.replay_beside_trainer"
        if key not in self.settings:
            return self._answer(text, kind)
        return self._answer(f"{text}; give them processes of their own", kind, f"{key}=false")

    def _trainer(self, trainer: Share, actor: Share | None) -> Diagnosis:
        text = f"trainer is busy {_percent(trainer.busy)} of the time"
        waits = actor.waits if actor is not None else {}
        blocked = waits.get("slots", 0.0) + waits.get("policy_age", 0.0)
        if actor is None:
            text += ": the trainer is the limit"
        elif blocked >= 0.05:
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

    def _other_worker(self, samples: float) -> Diagnosis | None:
        """The diagnosis that another kind of worker is the limit; None if there is no such kind."""
        others = {
            kind: share
            for kind, share in self.shares.items()
            if kind not in ("actor", "policy", "trainer", "evaluator")
            and share.busy >= 1 - MIN_WAIT
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
        text += "they run in turn"
        key, how = "algorithm.max_policy_age", "let samples be older, or use more groups"
        if key not in self.settings:
            text += ", because the algorithm learns only from samples of the newest policy"
            return self._answer(text, "policy_age")
        return self._change(text, "policy_age", how, key, self._number(key, 0) + 1)

    def _inference(self, samples: float, inference: float) -> Diagnosis:
        policy = self.shares.get("policy", Share(0.0, {}))
        text = (
            f"trainer waits for samples {_percent(samples)} of the time and actors for inference "
            f"{_percent(inference)}, policy workers are busy {_percent(policy.busy)}: "
        )
        if policy.busy >= BUSY_SHARE:
            more = 2 * self._number("inference.count", 1)
            text += "inference is the limit"
            how = "add policy workers"
            return self._change(text, "inference", how, "inference.count", more)
        # No worker is busy while requests travel. More groups per actor use that time.
        more = 2 * self._number("actor.groups", 1)
        text += "round trips are the limit"
        return self._change(text, "groups", "step more groups in turn", "actor.groups", more)

    def _environments(self, samples: float) -> Diagnosis:
        inference_share = self._inference_in_actors()
        limit = "environments are the limit"
        if inference_share is not None:
            limit = f"actors are the limit ({_percent(inference_share)} of their work is inference)"
        text = f"trainer waits for samples {_percent(samples)} of the time: {limit}"
        part = (
            "inference" if inference_share is not None and inference_share > 0.5 else "environments"
        )
        count, envs = self._number("actor.count", 1), self._number("actor.envs", 0)
        larger = [n for n in range(2 * count, envs + 1) if envs % n == 0]
        if envs == 0 or larger:
            more = larger[0] if larger else 2 * count
            if (
                not self.cores_full
                and self._max_gain_of_actors(more / count, inference_share or 0.0) < MIN_GAIN
            ):
                used = f"{_percent(self.used)} of {self.machine.cores} cores are in use"
                cost = " and smaller groups make inference cost more" if inference_share else ""
                return self._answer(f"{text}; more actors would not help: {used}{cost}", part)
            return self._change(text, part, "add actors", "actor.count", more)
        return self._change(text, part, "step more at once", "actor.envs", 2 * envs)

    def _max_gain_of_actors(self, times: float, inference: float) -> float:
        """The largest speed-up by `times` as many actors, with the same number of environments.

        Each actor then has smaller groups. A small network's forward pass takes as long for half of
        the rows. So inference costs up to `times` as much, and the cores must have time for that.
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
        text = f"{_takes(kind)} {_percent(share.busy)} of the time"
        return self._answer(text, _part(kind))

    def _inference_in_actors(self) -> float | None:
        """Share of the actors' work that is inference; None if it runs outside their processes."""
        actors = [w for w in self.times if w.kind == "actor"]
        own = sum(w.busy_seconds for w in actors)
        counted = sum(w.counters.get("inference_seconds", 0.0) for w in actors)
        if counted > 0 and own > 0:
            return min(counted / own, 1.0)
        if not self._share_process("actor", "policy"):
            return None
        inference = sum(w.busy_seconds for w in self.times if w.kind == "policy")
        return inference / (own + inference) if own + inference > 0 else None

    def _in_one_process(self) -> bool:
        """Whether the trainer shares its process with what it learns from, from the first worker
        on: from actors, if there are any."""
        first = ["actor"] if "actor" in self.shares else [k for k in self.shares if k != "trainer"]
        return any(self._share_process(kind, "trainer") for kind in first)

    def _share_process(self, kind: str, other: str) -> bool:
        """Whether workers of both kinds share a process."""
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
        if self.used * MIN_GAIN > 1:
            # After the change, the cores would soon be the limit.
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


def _takes(kind: str) -> str:
    names = {"actor": "environments take", "policy": "inference takes"}
    return names.get(kind, f"{kind} takes")
