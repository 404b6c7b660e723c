"""What workers tell the metrics collector: small typed messages as msgpack, never pickle."""

from __future__ import annotations

from typing import Literal

import msgspec

from srl.data.counts import Count, Version
from srl.errors import SpecError


class Episodes(msgspec.Struct, tag="episodes", frozen=True):
    """Training episodes that ended in one actor since it last reported."""

    worker: str
    policy: str
    returns: list[float]
    """One per episode of one agent."""
    lengths: list[Count]
    """In the same order as `returns`."""
    metrics: dict[str, list[float]] = {}
    """What the environment declared beside return and length."""

    def __post_init__(self) -> None:
        _check_episodes(self.returns, self.lengths)


class Update(msgspec.Struct, tag="update", frozen=True):
    """One learner step, as the trainer saw it."""

    worker: str
    policy: str
    policy_version: Version
    """Of the weights that this step made."""
    env_steps: Count
    """Environment steps consumed so far: a total, which a restored trainer continues."""
    agent_steps: Count
    """Agent steps consumed so far: a total too."""
    policy_age_mean: float
    """Versions between the weights that acted and the weights that learned, over this batch."""
    policy_age_max: float
    seconds: float
    """That this step took."""
    metrics: dict[str, float] = {}
    """What the algorithm reports: losses, entropy, ..."""


class Evaluation(msgspec.Struct, tag="evaluation", frozen=True):
    """Whole episodes played with fixed weights beside training."""

    worker: str
    policy: str
    policy_version: Version
    played: Version
    """The sum of the versions of all who played: it grows when anybody's does."""
    returns: list[float]
    lengths: list[Count]

    def __post_init__(self) -> None:
        _check_episodes(self.returns, self.lengths)


class Note(msgspec.Struct, tag="note", frozen=True):
    """A sentence for the person who watches the run."""

    worker: str
    level: Literal["info", "warning", "error"]
    text: str


def _check_episodes(returns: list[float], lengths: list[int]) -> None:
    if len(returns) != len(lengths):
        raise ValueError(
            f"expected a length for each of {len(returns)} episodes, got {len(lengths)}"
        )


Message = Episodes | Update | Evaluation | Note

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message in `data`; anything else is a SpecError."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(
            f"metrics message: expected one of episodes, update, evaluation, note, "
            f"got {len(data)} bytes that are none ({error})."
        ) from None
