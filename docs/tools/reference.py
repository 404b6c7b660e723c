"""Parts of the documents that are made from the code: settings, metrics, commands, constants.

A page says where its part belongs with `<!-- generated: NAME -->`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from srl.algorithms.registry import ALGORITHMS
from srl.cli import make_parser
from srl.envs.hide_and_seek import VARIANTS, HideAndSeekConfig, PhysicsConfig
from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.overrides import Setting, list_settings, override
from srl.policies.registry import POLICIES
from srl.services.metric_table import METRICS
from srl.settings import field_docs, show

_MARK = re.compile(r"<!-- generated: (\w+) -->")
_PARTS = ("algorithm", "network")
"""Settings that depend on a name: the algorithm's, and the policy's."""


def with_generated_parts(markdown: str) -> str:
    """A page's Markdown with each mark replaced by what it names."""
    return _MARK.sub(lambda match: "\n".join(_GENERATED[match[1]]()), markdown)


def _settings() -> Iterator[str]:
    """A table for each group of settings, and one for each algorithm and policy."""
    experiment = Experiment(env=EnvConfig(id="(required)"))
    groups: dict[str, list[Setting]] = {}
    for setting in list_settings(experiment):
        first, dot, _ = setting.key.partition(".")
        groups.setdefault(first if dot else "", []).append(setting)
    yield from _settings_table("The run", "", groups.pop(""))
    for name, settings in groups.items():
        if name not in _PARTS:
            yield from _settings_table(name, name, settings)
    for part, names in zip(_PARTS, (ALGORITHMS, POLICIES), strict=True):
        for name in names:
            chosen = override(experiment, {f"{part}.name": name})
            own = [s for s in list_settings(chosen) if s.key.startswith(f"{part}.")]
            yield from _settings_table(f"{part}: {name}", part, own)


def _settings_table(title: str, group: str, settings: Iterable[Setting]) -> Iterator[str]:
    yield from (f"## {title}", "", "| setting | type | default | meaning |", "|---|---|---|---|")
    for setting in settings:
        name = f'<span id="{setting.key}"></span>`{setting.key}`'
        yield _row(name, _code(setting.kind), _code(setting.value), _text(setting.meaning))
    yield ""


def _metrics() -> Iterator[str]:
    """One table of all metrics."""
    yield from ("| metric | meaning |", "|---|---|")
    for name, metric in METRICS.items():
        yield _row(_code(name), _text(metric.meaning))


def _commands() -> Iterator[str]:
    """Arguments, options and examples of every verb."""
    for verb, parser in _verbs(make_parser()).items():
        yield from (f"## srl {verb}", "", parser.description or "", "")
        yield from ("| argument or option | meaning |", "|---|---|")
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                yield _row(_spelling(action), _text(action.help or ""))
        examples = (parser.epilog or "").partition("examples:\n")[2]
        yield from ("", "```bash", *(line.strip() for line in examples.splitlines()), "```", "")


def _hide_and_seek() -> Iterator[str]:
    """A table of the rules and one of the physics, with what each small game has instead."""
    full, *others = VARIANTS.values()
    names = [name.removeprefix("hide_and_seek_") for name in VARIANTS][1:]
    tables: list[tuple[str, type, Any, list[Any]]] = [
        ("The game", HideAndSeekConfig, full, [*others]),
        ("Physics", PhysicsConfig, full.physics, [other.physics for other in others]),
    ]
    for title, kind, defaults, variants in tables:
        docs = field_docs(kind)
        yield from (f"### {title}", "", f"| setting | full game | {' | '.join(names)} | meaning |")
        yield "|---" * (len(names) + 3) + "|"
        for name in (field.name for field in dataclasses.fields(kind)):
            default = getattr(defaults, name)
            if dataclasses.is_dataclass(default):
                continue
            own = [getattr(variant, name) for variant in variants]
            cells = ["" if value == default else _code(show(value)) for value in own]
            yield _row(_code(name), _code(show(default)), *cells, _text(docs[name]))
        yield ""


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise ValueError("expected verbs, got a parser without any")


def _spelling(action: argparse.Action) -> str:
    """An option as a user types it."""
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if action.choices:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return _code(str(value))
    return _code(f"{', '.join(action.option_strings)} {value}".strip())


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _text(text: str) -> str:
    """Words for a table: what looks like HTML or a column is shown as it is."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    words = (part.replace("<", "&lt;").replace("|", "&#124;") for part in parts[::2])
    return "".join(
        itertools.chain.from_iterable(itertools.zip_longest(words, parts[1::2], fillvalue=""))
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


_GENERATED: dict[str, Callable[[], Iterator[str]]] = {
    "settings": _settings,
    "metrics": _metrics,
    "commands": _commands,
    "hide_and_seek": _hide_and_seek,
}
