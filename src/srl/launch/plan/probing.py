"""Learns what the environments of an experiment declare, before anything starts."""

from __future__ import annotations

from srl.casting import MAIN, actor_groups, env_of
from srl.envs.registry import probe, probe_both
from srl.envs.saved_spaces import SavedSpaces
from srl.errors import ConfigError
from srl.experiment import Experiment


def probe_groups(experiment: Experiment) -> SavedSpaces:
    """What the environments of all groups of actors declare; raises unless it is the same."""
    spec, spaces = probe_both(experiment.env)
    for name, group in actor_groups(experiment).items():
        if not group.env_args:
            continue
        other = probe(env_of(experiment, group))
        for what in ("agents", "env_state", "turn_based"):
            expected, got = getattr(spec, what), getattr(other, what)
            if expected != got:
                raise ConfigError(
                    f"actors.{name.removeprefix(f'{MAIN}-')}.env_args: expected an environment "
                    f"with the same {what} as that of `env`, {expected!s:.300}, got {got!s:.300}. "
                    "Change the arguments, or pad what differs in a wrapper."
                )
    return SavedSpaces.of(spec, spaces)
