"""Says which checkpoints have what workers keep, like a replay, and what is lost otherwise."""

from __future__ import annotations

from srl.launch.plan.memory import size_text
from srl.plan import Plan
from srl.services.checkpoints import Checkpoint, CheckpointConfig

_WHERE = {"last": "the newest checkpoint has", "always": "all checkpoints have"}


def _keepers(plan: Plan) -> dict[str, list[str]]:
    """The workers that keep something, by their group."""
    found: dict[str, list[str]] = {}
    for worker in plan.workers:
        if worker.memory_bytes:
            found.setdefault(worker.group, []).append(worker.name)
    return found


def kept_data_texts(plan: Plan, config: CheckpointConfig, resumed: Checkpoint | None) -> list[str]:
    """What a run says at its start, and when it is resumed; nothing if no worker keeps anything."""
    if not _keepers(plan):
        return []
    texts = [_saving_text(plan, config)]
    return texts if resumed is None else [*texts, *_resumed_texts(plan, resumed)]


def _saving_text(plan: Plan, config: CheckpointConfig) -> str:
    groups = " and ".join(_keepers(plan))
    setting = f"(checkpoint.replay={config.replay})"
    if config.replay == "never":
        return f"no checkpoint has what {groups} keeps {setting}: a resumed run fills it anew"
    size = size_text(sum(worker.memory_bytes for worker in plan.workers))
    return f"{_WHERE[config.replay]} what {groups} keeps, up to {size} {setting}"


def _resumed_texts(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    texts = []
    for group, names in _keepers(plan).items():
        found = [part for name in names for part in checkpoint.manifest.segments.get(name, [])]
        size = size_text(sum(part.bytes for part in found))
        texts.append(
            f"{group} goes on with what it kept ({size})"
            if found
            else f"{group} begins empty and is filled anew: checkpoint {checkpoint.number} does "
            "not have what it kept (checkpoint.replay)"
        )
    return texts
