"""Numbers of an episode that tell which strategy is played: the stages of hide-and-seek."""

from __future__ import annotations

import numpy as np

from srl.data.tree import Tree
from srl.envs.hide_and_seek.config import HideAndSeekConfig
from srl.envs.hide_and_seek.door_gap import free_gap
from srl.envs.hide_and_seek.interaction import Interaction
from srl.envs.hide_and_seek.worlds import Worlds

BLOW_UPS = "blow_ups"
"""1 for an episode that was discarded because its physics went wrong, else 0."""


def detector_names(config: HideAndSeekConfig) -> tuple[str, ...]:
    """The metrics of a game."""
    names = ["sight_rate"]
    kinds = [("box", "boxes")] * bool(config.num_boxes) + [("ramp", "ramps")] * bool(config.ramps)
    for one, many in kinds:
        for when in ("preparation", "end"):
            names.append(f"{one}_moved_{when}")
            if many == "boxes" or config.lockable_ramps:
                names.append(f"{many}_locked_{when}")
    if config.num_boxes:
        names += ["door_gap", "doors_closed"]
    if not config.physics.planar:
        names.append("highest_seeker")
    return (*names, BLOW_UPS)


class Detectors:
    """Measures the episodes of all worlds."""

    def __init__(self, worlds: Worlds, interaction: Interaction) -> None:
        self._worlds, self._interaction = worlds, interaction
        self._config = worlds.scene.config
        self.values = {name: np.zeros(worlds.num_worlds) for name in detector_names(self._config)}
        """float [worlds] each: complete when an episode has ended."""
        agents = worlds.scene.num_agents
        self._starts = np.zeros((worlds.num_worlds, worlds.scene.num_objects, 2))
        self._seekers = slice(self._config.hiders[1], agents)
        self._paid = np.zeros(worlds.num_worlds, np.int64)

    def begin(self, world: int) -> None:
        """Starts the measurements of an episode."""
        self._starts[world] = self._worlds.qpos[world, self._worlds.scene.num_agents :, :2]
        self._paid[world] = 0
        for values in self.values.values():
            values[world] = 0.0

    def watch(self, seen: np.ndarray, paid: np.ndarray) -> None:
        """Counts a step of all worlds: `seen` and `paid` are bool [worlds]."""
        self._paid += paid
        self.values["sight_rate"] += seen & paid
        highest = self.values.get("highest_seeker")
        if highest is not None:
            heights = self._worlds.qpos[:, self._seekers, 2]
            heights = np.where(self._worlds.present[:, self._seekers], heights, 0.0)
            np.maximum(highest, heights.max(1), out=highest)

    def end_preparation(self, world: int) -> None:
        """Measures what was moved, locked and closed in the preparation phase."""
        self._measure_objects(world, "preparation")
        if "door_gap" not in self.values:
            return
        gaps = self._door_gaps(world)
        passable = 2 * self._config.physics.agent_radius
        self.values["door_gap"][world] = max(gaps, default=np.nan)
        closed = float(max(gaps) < passable) if gaps else np.nan
        self.values["doors_closed"][world] = closed

    def end(self, world: int) -> None:
        """Completes the measurements of an episode."""
        self._measure_objects(world, "end")
        if not self._config.preparation_steps:
            self.end_preparation(world)
        self.values["sight_rate"][world] /= max(1, self._paid[world])

    def discard(self, world: int) -> None:
        """Says that an episode has no measurements, because its physics went wrong."""
        for name, values in self.values.items():
            values[world] = 1.0 if name == BLOW_UPS else np.nan

    def _measure_objects(self, world: int, when: str) -> None:
        worlds, boxes = self._worlds, self._config.num_boxes
        agents = worlds.scene.num_agents
        moved = worlds.qpos[world, agents:, :2] - self._starts[world]
        distance = np.hypot(moved[:, 0], moved[:, 1]) * worlds.present[world, agents:]
        locked = self._interaction.locked[world]
        kinds = (("box", "boxes", slice(0, boxes)), ("ramp", "ramps", slice(boxes, None)))
        for one, many, which in kinds:
            if f"{one}_moved_{when}" in self.values:
                self.values[f"{one}_moved_{when}"][world] = distance[which].max(initial=0.0)
            if f"{many}_locked_{when}" in self.values:
                self.values[f"{many}_locked_{when}"][world] = locked[which].sum()

    def _door_gaps(self, world: int) -> list[float]:
        """The free gap of each door."""
        worlds, agents = self._worlds, self._worlds.scene.num_agents
        there = worlds.present[world, agents:]
        objects = np.zeros((len(there), 5))
        objects[:, [0, 1, 4]] = worlds.qpos[world, agents:][:, [0, 1, -1]]
        objects[:, 2:4] = self._config.physics.ramp_size / 2
        objects[: self._config.num_boxes, 2:4] = worlds.box_sizes[world] / 2
        found = []
        for pieces in worlds.doors[world]:
            if pieces[0] >= 0:
                walls = np.zeros((2, 5))
                walls[:, :4] = worlds.walls[world, pieces]
                found.append(free_gap(np.concatenate([walls, objects[there]]), 0, 1))
        return found

    def state(self) -> dict[str, Tree]:
        """All that later measurements depend on."""
        return {
            "values": {name: values.copy() for name, values in self.values.items()},
            "starts": self._starts.copy(),
            "paid": self._paid.copy(),
        }

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`."""
        for name, values in self.values.items():
            values[:] = state["values"][name]
        self._starts[:], self._paid[:] = state["starts"], state["paid"]
