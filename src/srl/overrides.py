"""Changes single settings of an experiment by dotted key, as `--set` and `srl.train(set=)` do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from srl.algorithms.registry import algorithm_config
from srl.errors import ConfigError, nearest
from srl.experiment import Experiment, PolicyConfig, with_networks
from srl.policies.registry import policy_config
from srl.settings import convert, describe, show, to_plain
from srl.settings_objects import PARTS, Part, merged
from srl.workers.actor import ActorsConfig

_UNITS = {"k": 1_000, "m": 1_000_000, "b": 1_000_000_000}
_NESTED = frozenset({"algorithm", "network", "policies", "actors", "env.args"})
"""Settings of an experiment that hold further settings instead of a value."""
_NUMBER = re.compile(r"([\d_.]+(?:[eE][+-]?\d+)?)\s*([kKmMbB]?)")


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One line of `srl settings`."""

    key: str
    kind: str
    value: str
    meaning: str


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number; in YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def parse_number(text: str, name: str) -> int:
    """A whole number in any usual form: 200000, 200_000, 1e6, 2M, 50k."""
    match = _NUMBER.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        number = float(match[1]) * _UNITS.get(match[2].lower(), 1)
        if number != int(number):
            raise ValueError
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{name}: expected a whole number such as 200_000, 1e6 or 2M, got {text!r}."
        ) from None
    return int(number)


def parse_pairs(pairs: list[str], option: str) -> dict[str, Any]:
    """`key=value` texts as a dict; values are YAML."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{option}: expected key=value, got {pair!r}.")
        try:
            found[key.strip()] = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError:
            raise ConfigError(
                f"{option} {key}: expected a YAML value (3, 1e-3, true, [64, 64], text), "
                f"got {text!r}."
            ) from None
    return found


def override(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with some settings changed; raises for unknown keys and wrong values."""
    experiment = with_networks(experiment)
    if not settings:
        return experiment
    plain = to_plain(experiment)
    # Names come first, because they decide which other keys exist; an algorithm names a network.
    first = ("algorithm.name", "network.name")
    for key in sorted(settings, key=lambda key: first.index(key) if key in first else len(first)):
        value = settings[key]
        if key == "steps" and isinstance(value, str):
            value = parse_number(value, "steps")
        _set_value(plain, key, value, experiment)
    changed = convert(plain, Experiment, "")
    heads = {key.split(".")[0] for key in settings}
    if "policies" in heads:
        heads |= {"algorithm", "network"}
    _check_parts(changed, [part for part in PARTS if part in heads])
    return changed


def _check_parts(experiment: Experiment, parts: list[Part]) -> None:
    """Raises if a setting of the algorithm or the network is unknown or does not fit."""
    for part in parts:
        common: dict[str, Any] = getattr(experiment, part)
        given = {part: common} | {
            f"policies.{name}.{part}": merged(common, getattr(policy, part))
            for name, policy in experiment.policies.items()
        }
        for where, settings in given.items():
            plain = {key: value for key, value in settings.items() if key != "name"}
            convert(plain, _class_of(part, settings["name"]), where)


def list_settings(experiment: Experiment) -> Iterator[Setting]:
    """Every setting that `--set` takes, with the value that the experiment gives it."""
    experiment = with_networks(experiment)
    for key, kind, value, meaning in describe(Experiment):
        part = key.split(".")[0]
        if part in ("algorithm", "network"):
            meaning = f"Name or import path of the {'policy class' if part == 'network' else part}."
            yield Setting(f"{part}.name", "str", getattr(experiment, part)["name"], meaning)
            yield from _part_settings(experiment, part)
        elif key == "policies":
            for inner, inner_kind, default, inner_meaning in describe(
                PolicyConfig, "policies.NAME."
            ):
                yield Setting(inner, inner_kind, default, inner_meaning)
        elif key == "actors":
            yield from (Setting(*line) for line in describe(ActorsConfig, "actors.NAME."))
        elif key == "env.args":
            yield Setting("env.args.KEY", "any", show(experiment.env.args), meaning)
        else:
            value = show(_look_up(experiment, key))
            yield Setting(key, kind, value, meaning)


def _part_settings(experiment: Experiment, part: str) -> Iterator[Setting]:
    mine = getattr(experiment, part)
    for key, kind, default, meaning in describe(_settings_class(experiment, part), f"{part}."):
        name = key.removeprefix(f"{part}.")
        value = show(mine[name]) if name in mine else default
        yield Setting(key, kind, value, meaning)


def _settings_class(experiment: Experiment, part: str) -> type:
    """The settings class behind `algorithm` or `network`."""
    return _class_of(part, getattr(experiment, part)["name"])


def _class_of(part: str, name: str) -> type:
    return algorithm_config(name) if part == "algorithm" else policy_config(name)


def _set_value(plain: dict[str, Any], key: str, value: Any, experiment: Experiment) -> None:
    """Writes one value into nested plain settings."""
    parts = key.split(".")
    head = parts[0]
    if head in ("algorithm", "network") and parts[1:] == ["name"] and value != plain[head]["name"]:
        # Settings of one algorithm are not valid for another one.
        if head == "algorithm":
            _change_network(plain, value)
        plain[head] = {"name": value}
        return
    _check_key(key, parts, plain, experiment)
    inner = plain
    for part in parts[:-1]:
        # A group of actors begins with its first setting.
        inner = inner.setdefault(part, {}) if head == "actors" else inner[part]
    inner[parts[-1]] = value


def _change_network(plain: dict[str, Any], algorithm: str) -> None:
    """Takes another algorithm's own network, if the present one was the algorithm's own."""
    if plain["network"]["name"] == algorithm_config(plain["algorithm"]["name"]).network:
        name = algorithm_config(algorithm).network
        if name != plain["network"]["name"]:
            plain["network"] = {"name": name}


def _check_key(key: str, parts: list[str], plain: dict[str, Any], experiment: Experiment) -> None:
    """Raises, with the nearest names, if there is no setting with this key."""
    match parts:
        case ["policies", name, field, *rest]:
            if name not in plain["policies"]:
                names = ", ".join(plain["policies"])
                raise ConfigError(f"unknown setting {key!r}: the policies are {names}.")
            fields = [f.name for f in dataclasses.fields(PolicyConfig)]
            if field in fields and (not rest or field in ("network", "algorithm")):
                return
            raise ConfigError(f"unknown setting {key!r}: {nearest(field, fields)}")
        case ["actors", _, field, *rest]:
            fields = [f.name for f in dataclasses.fields(ActorsConfig)]
            if field in fields and (not rest or (field != "envs" and len(rest) == 1)):
                return
            raise ConfigError(f"unknown setting {key!r}: {nearest(field, fields)}")
        case ["env", "args", _]:
            return
        case ["algorithm" | "network" as part, name]:
            named = dataclasses.replace(experiment, **{part: plain[part]})
            kind: Any = _settings_class(named, part)
            if name in ("name", *(field.name for field in dataclasses.fields(kind))):
                return
            raise ConfigError(f"unknown setting {key!r}: {nearest(key, _known_keys(named))}")
    # The experiment's own settings are checked without its algorithm, which imports torch.
    if key not in _NESTED and any(key == own for own, *_ in describe(Experiment)):
        return
    known = _known_keys(experiment)
    same_end = [name for name in known if name.split(".")[-1] == parts[-1]]
    if same_end:
        hint = f"did you mean {' or '.join(repr(name) for name in same_end[:3])}?"
    else:
        hint = nearest(key, known).replace("`srl list`", "`srl settings`")
    raise ConfigError(f"unknown setting {key!r}: {hint}")


def _known_keys(experiment: Experiment) -> list[str]:
    return [setting.key for setting in list_settings(experiment)]


def _look_up(experiment: Experiment, key: str) -> Any:
    found: Any = experiment
    for part in key.split("."):
        found = getattr(found, part)
    return found
