"""Messages from workers to the metrics collector: small and typed, as msgpack, never pickle."""

from __future__ import annotations

from typing import Literal

import msgspec

from srl.data.counts import Count, Version
from srl.errors import SpecError


class Episodes(msgspec.Struct, tag="episodes", frozen=True):
    """Training episodes that ended in one actor since its last report."""

    worker: str
    policy: str
    returns: list[float]
    """One return for each episode of one agent."""
    lengths: list[Count]
    """In the order of `returns`."""
    metrics: dict[str, list[float]] = {}
    """Further episode metrics that the environment declares."""
    agents: list[Count] = []
    """For each episode: the index of the policy's agent that played it; empty if there is one
    agent."""

    def __post_init__(self) -> None:
        _check_episodes(self.returns, self.lengths, self.agents)


class Update(msgspec.Struct, tag="update", frozen=True):
    """One learner step, as the trainer saw it."""

    worker: str
    policy: str
    policy_version: Version
    """The version of the weights that this step made."""
    env_steps: Count
    """Environment steps consumed so far: a total, which a restored trainer continues."""
    agent_steps: Count
    """Agent steps consumed so far: a total, too."""
    policy_age_mean: float
    """Versions between the weights that acted and the weights that learned, over this batch."""
    policy_age_max: float
    seconds: float
    """Duration of this step."""
    metrics: dict[str, float] = {}
    """The algorithm's metrics: losses, entropy, ..."""


class Evaluation(msgspec.Struct, tag="evaluation", frozen=True):
    """Whole episodes, played with fixed weights beside training."""

    worker: str
    policy: str
    policy_version: Version
    played: Version
    """The sum of the versions of all policies that played; it grows when any of them grows."""
    returns: list[float]
    lengths: list[Count]
    agents: list[Count] = []
    """For each episode: the index of the policy's agent that played it; empty if there is one
    agent."""

    def __post_init__(self) -> None:
        _check_episodes(self.returns, self.lengths, self.agents)


class Note(msgspec.Struct, tag="note", frozen=True):
    """A message to the person who watches the run."""

    worker: str
    level: Literal["info", "warning", "error"]
    text: str


def _check_episodes(returns: list[float], lengths: list[int], agents: list[int]) -> None:
    if len(returns) != len(lengths):
        raise ValueError(
            f"expected a length for each of {len(returns)} episodes, got {len(lengths)}"
        )
    if agents and len(agents) != len(returns):
        raise ValueError(
            f"expected an agent for each of {len(returns)} episodes, got {len(agents)}"
        )


Message = Episodes | Update | Evaluation | Note

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encodes a message as bytes."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Decodes the message in `data`; anything else is a SpecError."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(
            f"metrics message: expected one of episodes, update, evaluation, note, "
            f"got {len(data)} bytes of something else ({error})."
        ) from None
