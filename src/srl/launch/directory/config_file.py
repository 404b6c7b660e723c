"""Writes and reads `config.yaml`, the settings of an experiment.

Another user may have written the text, so the cost of reading it is bounded by its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from srl.errors import ConfigError, printable
from srl.experiment import Experiment
from srl.settings import convert, to_plain

_MAX_NUMBER = 1 << 63
_MAX_DEPTH = 50
_MAX_DIGITS = 100
_DIGITS = frozenset("0123456789_:+-.")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C if there is one: the other parser takes ten times as long."""


def encode_config(experiment: Experiment) -> bytes:
    """The settings of an experiment as YAML."""
    return yaml.dump(to_plain(experiment), Dumper=_Dumper, sort_keys=False).encode()


def decode_config(data: bytes, file: Path) -> Experiment:
    """Reads settings from YAML, which may come from any user; raises ConfigError if it cannot."""
    try:
        _check_events(data)
        plain = yaml.load(data, Loader=_SafeLoader)
        if not isinstance(plain, dict):
            got = "an empty file" if plain is None else type(plain).__name__
            raise ConfigError(f"{file}: expected the settings of a run, got {got}.")
        for value in _leaves(plain):
            _check_leaf(value, file)
        return convert(plain, Experiment, "")
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        # (A number of thousands of digits is a ValueError.)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{file}: expected YAML, got something else ({reason}).") from None


def _check_events(data: bytes) -> None:
    """Raises if the text contains something that costs more than its length.

    That is aliases (a few lines of them may expand to more than fits into memory), deep nesting,
    and numbers of thousands of digits.
    """
    depth = 0
    for event in yaml.parse(data, Loader=_SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"settings nested more than {_MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"the alias *{event.anchor}; write the value itself")
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            text = event.value
            if len(text) > _MAX_DIGITS and _DIGITS.issuperset(text):
                raise yaml.YAMLError(f"a number of {len(text):,} digits")


def _leaves(value: Any) -> Iterator[Any]:
    """All keys and values of nested settings that are not containers."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _check_leaf(value: Any, file: Path) -> None:
    if isinstance(value, str) and value != printable(value):
        raise ConfigError(f"{file}: expected text without control characters, got {value!r}.")
    if isinstance(value, int) and not -_MAX_NUMBER <= value < _MAX_NUMBER:
        raise ConfigError(
            f"{file}: expected numbers of at most 64 bits, got one of {value.bit_length()} bits."
        )
