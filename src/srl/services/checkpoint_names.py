"""Names of checkpoints: `latest`, `best`, a tag, a number (`12`), a policy version (`v340`).

Numbers count checkpoints and versions count learner steps, so the two are written differently. Each
policy has versions and a best checkpoint of its own: `best:POLICY`, `v340:POLICY`. If a policy
plays several sides, each side has a best checkpoint: `best:POLICY/SIDE`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from srl.errors import CheckpointError, nearest

if TYPE_CHECKING:
    from srl.services.checkpoints import Checkpoint

_FOLDER = re.compile(r"\d{9,15}")
_VERSION = re.compile(r"v\d+")


def is_checkpoint(folder: str) -> bool:
    """Whether a folder name is that of a complete checkpoint: a number with nine digits or more."""
    return _FOLDER.fullmatch(folder) is not None


def is_version(name: str) -> bool:
    """Whether a name is a policy version."""
    return _VERSION.fullmatch(name) is not None


def is_by_policy(name: str) -> bool:
    """Whether the checkpoint that a name stands for depends on the policy."""
    return name == "best" or is_version(name)


def best_by_policy(found: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """The checkpoint with the highest score of each policy (or POLICY/SIDE); of equal ones the
    newest."""
    best: dict[str, tuple[float, Checkpoint]] = {}
    for checkpoint in found:
        for policy, score in checkpoint.manifest.scores.items():
            if score is None or not math.isfinite(score):
                continue
            if policy not in best or score >= best[policy][0]:
                best[policy] = (score, checkpoint)
    return {policy: checkpoint for policy, (_, checkpoint) in best.items()}


def choose(directory: Path, found: list[Checkpoint], name: str, policy: str) -> Checkpoint:
    """The checkpoint of a folder that `name` stands for; `found` has all of them, oldest first.

    `policy` counts where the name depends on a policy and does not name one.
    """
    if not found:
        raise CheckpointError(
            f"{directory}: expected a checkpoint, got none. A run writes its first one after "
            "checkpoint.every_seconds, and one more at its end."
        )
    if name == "latest":
        return found[-1]
    plain, _, named = name.partition(":")
    if named and is_by_policy(plain):
        policy = named
        _check_trained(directory, found, plain, policy_of(policy) if plain == "best" else policy)
    if plain == "best":
        return _find_best(directory, found, policy)
    if name.isdecimal():
        matches = [c for c in found if c.number == int(name)]
    elif is_version(plain):
        matches = [c for c in found if int(plain[1:]) in _versions(c, policy)]
    else:
        matches = [c for c in found if name in c.tags]
    if matches:
        return matches[-1]
    raise CheckpointError(f"{directory}: no checkpoint {name!r}{_known(name, found)}")


def _find_best(directory: Path, found: list[Checkpoint], owner: str) -> Checkpoint:
    trained = list(found[-1].manifest.policy_versions)
    if owner or len(trained) > 1:
        _check_trained(directory, found, "best", policy_of(owner))
    best = best_by_policy(found)
    owner = owner or next(iter(trained), "")
    policy = policy_of(owner)
    if owner not in best and (sides := [one for one in best if one.startswith(f"{policy}/")]):
        choice = " or ".join(f"best:{one}" for one in sides)
        raise CheckpointError(
            f"{directory}: expected {choice}, because policy {policy!r} plays several sides, and "
            f"what one wins another may lose, got 'best:{owner}'."
        )
    if owner not in best:
        raise CheckpointError(
            f"{directory}: no checkpoint has a score of policy {policy!r} yet, so none is best. "
            "Use 'latest', or train until 100 episodes or an evaluation are over."
        )
    return best[owner]


def policy_of(owner: str) -> str:
    """The policy in POLICY or POLICY/SIDE."""
    return owner.partition("/")[0]


def _check_trained(directory: Path, found: list[Checkpoint], name: str, policy: str) -> None:
    trained = found[-1].manifest.policy_versions
    if policy not in trained:
        choice = " or ".join(f"{name}:{known}" for known in trained)
        got = f"{name}:{policy}" if policy else name
        raise CheckpointError(
            f"{directory}: expected {choice}, because each policy that learns has its own, got "
            f"{got!r}."
        )


def _versions(checkpoint: Checkpoint, policy: str) -> set[int]:
    """The version of a policy in a checkpoint; the versions of all, if this policy does not
    learn."""
    versions = checkpoint.manifest.policy_versions
    return {versions[policy]} if policy in versions else set(versions.values())


def _known(name: str, found: list[Checkpoint]) -> str:
    """The end of an error message: the nearest name, and the existing checkpoints."""
    hint = ""
    if not name.isdecimal() and not is_version(name):
        hint = nearest(name, {"latest", "best", *(tag for c in found for tag in c.tags)}) + " "
    elif name.isdecimal() and any(int(name) in _versions(c, "") for c in found):
        hint = f"that is a policy version, which is called 'v{name}'. "
    listed = ", ".join(
        f"{c.number} ({'/'.join(f'v{v}' for v in sorted(_versions(c, ''))) or 'no versions'})"
        for c in found
    )
    return f": {hint}There are, by number (policy version): {listed}."
