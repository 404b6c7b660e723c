"""Settings of algorithms that learn from a whole team. Nothing here imports torch."""

from __future__ import annotations

from typing import Literal

TeamView = Literal["auto", "state", "observations"]
"""What a whole team sees: the environment's global state, or the observations of all agents. `auto`
is the state where there is one."""
TeamReward = Literal["mean", "sum"]
"""The reward of a team: the mean or the sum of what the agents that act earned."""
