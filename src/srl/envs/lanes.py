"""Lanes fit an environment if every agent is in exactly one, and agents of one lane look alike."""

from __future__ import annotations

from srl.data.spec import EnvSpec
from srl.envs.protocol import Lanes
from srl.errors import ConfigError, nearest


def check_lanes(spec: EnvSpec, lanes: Lanes) -> None:
    """Raises a ConfigError that names the agent which has no policy, has two, or does not exist."""
    seen: dict[str, str] = {}
    for lane, agents in lanes.items():
        if not agents:
            raise ConfigError(f"lane {lane!r}: expected at least one agent, got none.")
        for agent in agents:
            if agent not in spec.agents:
                raise ConfigError(
                    f"lane {lane!r}: the environment has no agent {agent!r}: "
                    f"{nearest(agent, spec.agents)}"
                )
            if agent in seen:
                raise ConfigError(
                    f"agent {agent!r}: expected one policy, got {seen[agent]!r} and {lane!r}. "
                    "Remove it from one of them."
                )
            seen[agent] = lane
            if spec.agents[agent] != spec.agents[agents[0]]:
                raise ConfigError(
                    f"lane {lane!r}: expected agents with equal spaces, got {agents[0]!r} and "
                    f"{agent!r} which differ. Give them a policy each, or pad their spaces."
                )
    missing = [agent for agent in spec.agents if agent not in seen]
    if missing:
        raise ConfigError(
            f"agents {missing}: expected every agent to have a policy, got none for them. "
            "Add them to a policy."
        )
