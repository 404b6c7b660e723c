"""Frame stacks: each frame is stored once, and stacks are made when they are read."""

from __future__ import annotations

import numpy as np

from srl.data.flags import any_true


def stack_index(is_first: np.ndarray, stack: int) -> np.ndarray:
    """The stored frames in each tick's stack, by index: int64 [ticks, B, stack], oldest first.

    `is_first` is [ticks, B]. Frames are stored as [ticks + stack - 1, B, ...]; the newest frame of
    tick t is at t + stack - 1. The episode's first frame replaces frames from before the episode.
    """
    ticks = is_first.shape[0]
    tick = np.arange(ticks)[:, None]
    first = np.maximum.accumulate(np.where(is_first, tick, -stack), axis=0)
    wanted = tick[:, :, None] + np.arange(1 - stack, 1)
    index: np.ndarray = np.maximum(wanted, first[:, :, None]) + (stack - 1)
    return index


def push_frame(stacked: np.ndarray, frame: np.ndarray, is_first: np.ndarray) -> None:
    """Shifts the stacks of an actor ([rows, stack, ...]) by one frame, in place. A new episode
    fills its row's stack with its first frame."""
    assert stacked.flags.c_contiguous, "stacks must be contiguous to be shifted in place"
    rows = stacked.reshape(len(stacked), -1)
    size = rows.shape[1] // stacked.shape[1]
    for row in rows:
        # Along one axis numpy moves overlapping memory in place; along two axes it makes a copy.
        row[:-size] = row[size:]
    stacked[:, -1] = frame
    if any_true(is_first):
        stacked[is_first] = frame[is_first][:, None]
