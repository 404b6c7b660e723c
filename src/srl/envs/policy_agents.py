"""Checks that every agent has one policy, and that agents of a policy have equal spaces."""

from __future__ import annotations

from srl.data.spec import EnvSpec
from srl.envs.protocol import PolicyAgents
from srl.errors import ConfigError, nearest


def check_policy_agents(spec: EnvSpec, policy_agents: PolicyAgents) -> None:
    """Raises a ConfigError if an agent has no policy, has two policies, or does not exist."""
    policy_of: dict[str, str] = {}
    for policy, agents in policy_agents.items():
        if not agents:
            raise ConfigError(f"policy {policy!r}: expected at least one agent, got none.")
        for agent in agents:
            if agent not in spec.agents:
                raise ConfigError(
                    f"policy {policy!r}: the environment has no agent {agent!r}: "
                    f"{nearest(agent, spec.agents)}"
                )
            if agent in policy_of:
                raise ConfigError(
                    f"agent {agent!r}: expected one policy, got {policy_of[agent]!r} and "
                    f"{policy!r}. Remove the agent from one of them."
                )
            policy_of[agent] = policy
            if spec.agents[agent] != spec.agents[agents[0]]:
                raise ConfigError(
                    f"policy {policy!r}: expected agents with equal spaces, got different "
                    f"ones for {agents[0]!r} and {agent!r}. Give each agent its own policy, or pad "
                    "their spaces."
                )
    missing = [agent for agent in spec.agents if agent not in policy_of]
    if missing:
        raise ConfigError(
            f"agents {missing}: expected every agent to have a policy, got none for them. "
            "Add them to a policy."
        )
