"""Settings of an algorithm or a network, given as a dict or as an object like `PPOConfig(...)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from srl.algorithms.registry import algorithm_of
from srl.errors import ConfigError
from srl.policies.registry import policy_of
from srl.settings import settings_of

Part = Literal["algorithm", "network"]
PARTS: tuple[Part, ...] = ("algorithm", "network")

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class Settings:
        """A field that is given as a dict or as a settings object, and is a dict afterwards."""

        def __get__(self, instance: object, owner: Any = None) -> dict[str, Any]: ...
        def __set__(self, instance: object, value: dict[str, Any] | DataclassInstance) -> None: ...
else:
    Settings = dict[str, Any]


def part_settings(given: Any, part: Part, where: str = "") -> dict[str, Any]:
    """The settings of an algorithm or a network as a dict.

    `given` is a dict, or a settings object such as `PPOConfig(...)`. An object is complete: the
    dict has the `name` that it belongs to, and all of its fields.
    """
    where = where or part
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, type) or not dataclasses.is_dataclass(given):
        example = "PPOConfig()" if part == "algorithm" else "ActorCriticConfig()"
        raise ConfigError(
            f"{where}: expected a dict or a settings object such as srl.{example}, got "
            f"{given!r:.100}. Give {{'name': ...}}, or make an object of the class's `Config`."
        )
    if any(field.name == "name" for field in dataclasses.fields(given)):
        raise ConfigError(
            f"{where}: expected a settings class without a field `name`, which is the import path "
            f"of its owner, got {type(given).__name__}. Rename the field."
        )
    name = algorithm_of(given, where) if part == "algorithm" else policy_of(given, where)
    return {"name": name, **settings_of(given, where)}


def make_default(**default: str) -> Callable[[], Any]:
    """A factory of defaults for a field of type `Settings`."""
    return lambda: dict(default)


def merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The settings of one policy's algorithm or network: common ones, changed by its own.

    Where its own have another name, that class begins with its own defaults.
    """
    if own.get("name", common["name"]) != common["name"]:
        return dict(own)
    return {**common, **own}


def make_plain(owner: object, where: str = "") -> None:
    """Replaces the settings objects of a frozen dataclass by dicts."""
    for part in PARTS:
        object.__setattr__(owner, part, part_settings(getattr(owner, part), part, where + part))
