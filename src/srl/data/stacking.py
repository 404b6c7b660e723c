"""Frame stacks: each frame is stored once and the stack is put together on read."""

from __future__ import annotations

import numpy as np

from srl.data.flags import any_true


def stack_index(is_first: np.ndarray, stack: int) -> np.ndarray:
    """Which stored frames make up each tick's stack: int64 [ticks, B, stack], oldest first.

    `is_first` is [ticks, B]; frames are stored as [ticks + stack - 1, B, ...] with tick t's own
    frame at t + stack - 1. Frames from before the episode are replaced by its first one.
    """
    ticks = is_first.shape[0]
    tick = np.arange(ticks)[:, None]
    first = np.maximum.accumulate(np.where(is_first, tick, -stack), axis=0)
    wanted = tick[:, :, None] + np.arange(1 - stack, 1)
    index: np.ndarray = np.maximum(wanted, first[:, :, None]) + (stack - 1)
    return index


def push_frame(stacked: np.ndarray, frame: np.ndarray, is_first: np.ndarray) -> None:
    """Moves a live stack ([rows, stack, ...]) one frame on, in place; a new episode fills it with
    its first frame."""
    assert stacked.flags.c_contiguous, "a live stack is moved in place"
    rows = stacked.reshape(len(stacked), -1)
    size = rows.shape[1] // stacked.shape[1]
    for row in rows:
        # Along one axis numpy moves overlapping memory in place; along two it copies it first.
        row[:-size] = row[size:]
    stacked[:, -1] = frame
    if any_true(is_first):
        stacked[is_first] = frame[is_first][:, None]
