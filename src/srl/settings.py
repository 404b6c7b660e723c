"""Reads settings from YAML and `--set key=value` into frozen dataclasses.

Each field of such a dataclass has a docstring under it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from srl.errors import ConfigError, nearest

T = TypeVar("T")

MAX_CONFIG_BYTES = 1 << 18
"""Largest settings file that SRL reads; the settings of a thousand hosts fit into it."""


def convert(values: dict[str, Any], kind: type[T], where: str) -> T:
    """Makes a settings dataclass from plain values; errors name unknown keys and wrong types."""
    _check_keys(values, kind, where)
    try:
        converted = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), values, kind, where)) from None
    _refuse_nan(converted, where)
    return converted


def _refuse_nan(settings: Any, where: str) -> None:
    """Raises if a setting is NaN, which passes all checks of bounds."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        key = f"{where}.{field.name}" if where else field.name
        if dataclasses.is_dataclass(value):
            _refuse_nan(value, key)
        elif isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{key}: expected a number, got nan.")


def _explain(message: str, values: dict[str, Any], kind: type, where: str) -> str:
    """A validation error as "key: expected ..., got ...", with the value that was given."""
    reason, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    key = ".".join(part for part in (where, path) if part)
    expected, _, got = reason.partition(", got ")
    expected = expected.removeprefix("Expected ").replace("`", "")
    value: Any = values
    hint: Any = kind
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
        hint = get_type_hints(hint).get(part) if dataclasses.is_dataclass(hint) else None
    got = got.replace("`", "") if value is None else repr(value)
    if reason.startswith("Invalid enum value "):
        got = reason.removeprefix("Invalid enum value ")
        choices = [c for h in (hint, *get_args(hint)) for c in get_args(h) if isinstance(c, str)]
        expected = f"one of {', '.join(choices)}" if choices else "another value"
    return f"{key}: expected {expected}, got {got}."


def check_types(settings: Any, where: str) -> None:
    """Raises if the value of a field does not have the field's type."""
    hints = _hints(type(settings), where)
    for field in dataclasses.fields(settings):
        value = _plain_field(settings, field.name, where)
        try:
            msgspec.convert(value, hints[field.name])
        except msgspec.ValidationError as error:
            message = f"{error} - at `$.{field.name}`"
            values = {field.name: value}
            raise ConfigError(_explain(message, values, type(settings), where)) from None


def settings_of(config: Any, where: str) -> dict[str, Any]:
    """All fields of a settings object as plain values, checked like values from a file."""
    names = [field.name for field in dataclasses.fields(config)]
    plain = {name: _plain_field(config, name, where) for name in names}
    return to_plain(convert(plain, type(config), where))  # type: ignore[no-any-return]


def _plain_field(config: Any, name: str, where: str) -> Any:
    value = getattr(config, name)
    try:
        return to_plain(value)
    except TypeError:
        raise ConfigError(
            f"{where}.{name}: expected a plain value (number, text, list, dict or nothing), got "
            f"{value!r:.100} of type {type(value).__name__}. Convert it first."
        ) from None


def to_plain(value: Any) -> Any:
    """Settings as plain values for YAML and JSON."""
    # msgspec leaves out fields of a converted dataclass that still have their default.
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return msgspec.to_builtins(value)


def field_docs(kind: type) -> dict[str, str]:
    """The docstring under each field, base classes included."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            docs.update(_own_field_docs(base))
    return docs


def describe(kind: type, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, meaning) of every setting, nested ones with dotted keys."""
    docs, hints = field_docs(kind), _hints(kind, prefix)
    for field in dataclasses.fields(kind):
        key = f"{prefix}{field.name}"
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from describe(hint, f"{key}.")  # type: ignore[arg-type]
            continue
        default: Any = field.default
        if default is dataclasses.MISSING:
            factory: Any = field.default_factory
            default = "(required)" if factory is dataclasses.MISSING else factory()
        name = field.type if isinstance(field.type, str) else getattr(hint, "__name__", str(hint))
        if get_origin(hint) is Literal:
            name = " | ".join(get_args(hint))
        yield key, name, show(default), docs.get(field.name, "")


def show(value: Any) -> str:
    """A value as a user writes it after `--set key=`."""
    plain = to_plain(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def _check_keys(values: dict[str, Any], kind: type, where: str) -> None:
    hints = _hints(kind, where)
    known = [field.name for field in dataclasses.fields(kind)]
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        if key not in known:
            raise ConfigError(f"unknown setting {path!r}: {nearest(key, known)}")
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, dict):
            _check_keys(value, hints[key], path)


def _hints(kind: type, where: str) -> dict[str, Any]:
    """The types of a settings class's fields."""
    try:
        return get_type_hints(kind)
    except NameError as error:
        raise ConfigError(
            f"{where}: expected types in {kind.__name__} that can be found at run time, got "
            f"{error.name!r}. Import it outside of `if TYPE_CHECKING:`."
        ) from None


@functools.cache
def _own_field_docs(kind: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return {}
    docs: dict[str, str] = {}
    body = tree.body[0].body  # type: ignore[attr-defined]
    for line, following in itertools.pairwise(body):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[line.target.id] = " ".join(following.value.value.split())
    return docs
