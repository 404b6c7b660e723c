"""Which modules an environment's family needs, by the environment's id, before it is made.

A process that will fork actors imports them. None is a user's, and none starts a thread.
"""

from __future__ import annotations

import gymnasium

from srl.envs.ids import OWN_GROUPS

_GYMNASIUM = "gymnasium.envs."


def packages_of(id: str) -> tuple[str, ...]:
    """The modules that actors import to make such an environment; none for a user's own."""
    if id.startswith("envpool:"):
        return ("srl.envs.envpool_group", "envpool")
    if id.startswith("ALE/"):
        return ("srl.envs.atari", "srl.envs.gym_group", "ale_py")
    if id in OWN_GROUPS:
        return (OWN_GROUPS[id].partition(":")[0],)
    spec = gymnasium.registry.get(id)
    point = str(spec.entry_point) if spec is not None else ""
    if point.startswith(_GYMNASIUM):
        return ("srl.envs.gym_group", point.partition(":")[0])
    return ()
