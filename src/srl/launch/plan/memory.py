"""How much memory a plan needs, computed before any of it is allocated."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from srl.errors import RunError
from srl.plan import Plan
from srl.services.parameters import parameter_bytes
from srl.streams.admission import sample_bytes
from srl.streams.inference import inference_bytes
from srl.streams.sample_queue import SETTINGS

BATCHES = 2
"""Batches in a trainer's own memory: the trainer learns from one and fills the other."""


@dataclasses.dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that a run needs for data, without the memory of the processes themselves."""

    streams: int
    """The slots of all streams, with requests and replies."""
    weights: int
    """The published weights of every policy."""
    batches: int
    """The batches that trainers fill and learn from."""
    kept: dict[str, int]
    """What workers keep, like a replay, by their group."""

    @property
    def total(self) -> int:
        """The sum of all."""
        return self.streams + self.weights + self.batches + sum(self.kept.values())

    @property
    def in_checkpoints(self) -> int:
        """What checkpoints may contain once: all but what workers keep."""
        return self.total - sum(self.kept.values())

    def __str__(self) -> str:
        kept = "".join(f", {group} {size_text(size)}" for group, size in self.kept.items())
        return (
            f"about {size_text(self.total)}: streams {size_text(self.streams)}, trainers' batches "
            f"{size_text(self.batches)}, weights {size_text(self.weights)}{kept}"
        )


def region_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of every stream and of every policy's weights, by region, as the head reserves
    them."""
    return {
        **{f"inference/{key}": inference_bytes(s.spec) for key, s in plan.inference.items()},
        **{f"sample/{key}": sample_bytes(s.spec) for key, s in plan.samples.items()},
        **{f"parameters/{n}": parameter_bytes(p.parameters) for n, p in plan.policies.items()},
    }


def shared_bytes(plan: Plan) -> int:
    """Bytes of shared memory that a plan needs; a plan with one process needs none."""
    if len(plan.processes) == 1:
        return 0
    private = {f"inference/{key}" for key, p in plan.inference.items() if p.carrier == "inline"}
    return sum(size for name, size in region_bytes(plan).items() if name not in private)


def memory_needs(plan: Plan) -> MemoryNeeds:
    """The memory that all processes of a plan need for data."""
    sizes = region_bytes(plan)
    weights = sum(size for name, size in sizes.items() if name.startswith("parameters/"))
    batches = 0
    for worker in plan.workers:
        for name in worker.reads if worker.trains else ():
            spec = plan.samples[name].spec
            batches += BATCHES * spec.fragments_per_batch * spec.record.nbytes
    kept: dict[str, int] = {}
    for worker in plan.workers:
        if worker.memory_bytes:
            kept[worker.group] = kept.get(worker.group, 0) + worker.memory_bytes
    return MemoryNeeds(sum(sizes.values()) - weights, weights, batches, kept)


def check_memory(plan: Plan, available: int | None) -> None:
    """Raises if a plan on one host needs more memory than is available there (None: unknown)."""
    needs = memory_needs(plan)
    on_one_host = not plan.experiment["hosts"] or plan.experiment["launcher"] == "processes"
    if available is None or not on_one_host or needs.total <= available:
        return
    actor, slots = plan.experiment["actor"], plan.experiment["sample"]["slots"]
    fragments = [stream.spec for stream in plan.samples.values() if not stream.has_tables]
    ticks = max(spec.trajectory.length for spec in fragments)
    told = f"memory: this run needs {needs}; {size_text(available)} are available. "
    if 2 * sum(needs.kept.values()) > needs.total:
        groups = " and ".join(needs.kept)
        raise RunError(
            f"{told}Let {groups} keep less; a replay keeps algorithm.buffer_size environment steps."
        )
    raise RunError(
        f"{told}Lower {SETTINGS}: they are {actor['envs']}, {ticks} and {slots or 'two batches'}. "
        "`srl plan` shows what each stream takes."
    )


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that processes may still allocate, with swap and within the container's limit; None if
    the system does not report them."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        known = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
        available = 1024 * (known["MemAvailable"] + known.get("SwapFree", 0))
    except (OSError, KeyError, ValueError, IndexError):
        return None
    group = root / "sys/fs/cgroup"
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
            available = min(available, left)
        except (OSError, ValueError):
            # There is no such limit, or it is "max".
            continue
    return max(0, available)


def size_text(nbytes: int) -> str:
    """A number of bytes as text, like 1.5 GB."""
    number, unit = float(nbytes), "B"
    for bigger in ("kB", "MB", "GB"):
        if number < 1000:
            break
        number, unit = number / 1000, bigger
    return f"{number:.0f} {unit}" if number >= 100 or unit == "B" else f"{number:.1f} {unit}"
