"""The display in the terminal while a run goes on, and the report at its end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from srl.errors import printable
from srl.reporting.notebook_display import NotebookDisplay, is_notebook
from srl.reporting.summary import Summary
from srl.services.messages import Note
from srl.services.metric_names import AgentResult, MetricNames, PolicyResult
from srl.services.until import Until

if TYPE_CHECKING:
    from rich.console import RenderableType

LIVE_SECONDS = 0.25
NOTEBOOK_SECONDS = 1.0
PLAIN_SECONDS = 5.0


class RunProgress:
    """How far a run is towards its nearest goal, and how long that may still take."""

    def __init__(
        self, steps: int | None = None, seconds: float | None = None, until: Until | None = None
    ) -> None:
        self.steps, self.seconds, self.until = steps, seconds, until
        self._first: dict[str, float] = {}
        self._begin: tuple[float, float] | None = None

    def fraction(self, snapshot: Mapping[str, float]) -> float | None:
        """How far the run is, from 0 to 1; None for a run without a goal."""
        found = []
        if self.steps:
            found.append(snapshot.get("env_steps", 0) / self.steps)
        if self.seconds:
            found.append(snapshot.get("seconds", 0.0) / self.seconds)
        if self.until:
            found.append(self._until_fraction(self.until, snapshot))
        return min(max(found), 1.0) if found else None

    def eta_seconds(self, snapshot: Mapping[str, float]) -> float | None:
        """Seconds left, at the speed since the first call; None while it is not known."""
        fraction, now = self.fraction(snapshot), snapshot.get("seconds", 0.0)
        if fraction is None:
            return None
        if self._begin is None:
            self._begin = (fraction, now)
        gained, took = fraction - self._begin[0], now - self._begin[1]
        return (1 - fraction) * took / gained if gained > 0.01 and took > 0 else None

    def _until_fraction(self, until: Until, snapshot: Mapping[str, float]) -> float:
        fractions = []
        for condition in until.conditions:
            value = snapshot.get(condition.metric)
            if value is None:
                return 0.0
            first = self._first.setdefault(condition.metric, value)
            way = condition.threshold - first
            fractions.append(min(max((value - first) / way, 0.0), 1.0) if way else 0.0)
        # Never 1.0 from thresholds is_single: only `reached` knows whether the windows are full.
        return 1.0 if until.reached(snapshot) else min(0.99, *fractions, 0.99)


class Display:
    """Shows a run: a live panel on a terminal or in a notebook, else a line every few seconds;
    nothing if quiet.

    `update` draws in the caller's thread, and costs nothing while `due` returns False.
    """

    def __init__(
        self,
        title: str,
        progress: RunProgress,
        names: MetricNames,
        *,
        quiet: bool = False,
        stream: IO[str] | None = None,
        live: bool | None = None,
    ) -> None:
        self.title, self.progress, self.names, self.quiet = title, progress, names, quiet
        self._stream = stream if stream is not None else sys.stdout
        self._is_live = self._stream.isatty() if live is None else live
        self._notebook = NotebookDisplay() if stream is None and is_notebook() else None
        self._next = 0.0
        self._live: Any = None

    def due(self, now: float) -> bool:
        """Whether it is time for another `update`. Ask this before you make a snapshot."""
        return not self.quiet and now >= self._next

    def update(self, snapshot: Mapping[str, float], bottleneck: str, now: float) -> None:
        """Shows the latest numbers; `now` is `time.monotonic()`."""
        if not self.due(now):
            return
        results = self.names.results(snapshot)
        if self._notebook is not None:
            self._next = now + NOTEBOOK_SECONDS
            picture = panel(self.title, snapshot, results, bottleneck, self.progress)
            self._notebook.update(picture, plain_line(snapshot, results, self.progress))
            return
        if not self._is_live:
            self._next = now + PLAIN_SECONDS
            print(plain_line(snapshot, results, self.progress), file=self._stream, flush=True)
            return
        self._next = now + LIVE_SECONDS
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, force_terminal=True)
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
        picture = panel(self.title, snapshot, results, bottleneck, self.progress)
        self._live.update(picture, refresh=True)

    def note(self, note: Note) -> None:
        """Prints a note of a worker. If quiet, it prints errors only."""
        if self.quiet and note.level != "error":
            return
        text = printable(f"{note.level}: {note.worker}: {note.text}")
        if self._live is not None:
            from rich.text import Text

            style = {"warning": "yellow", "error": "bold red"}.get(note.level, "")
            self._live.console.print(Text(text, style=style))
        else:
            stream = sys.stderr if note.level == "error" else self._stream
            print(text, file=stream, flush=True)

    def close(self) -> None:
        """Ends the live display. The last picture stays on the screen."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def plain_line(
    snapshot: Mapping[str, float], results: Mapping[str, PolicyResult], progress: RunProgress
) -> str:
    """One line for a log file."""
    fields = [
        f"{_duration(snapshot.get('seconds', 0.0))}",
        f"steps {_steps(snapshot, progress)}",
        f"{_number(snapshot.get('env_steps_per_second'))} steps/s",
        f"return {_by_policy(results, 'episode_return_mean')}",
    ]
    if _has_evaluations(results):
        fields.append(f"eval {_by_policy(results, 'eval_return_mean')}")
    fields.append(f"episodes {_number(snapshot.get('episodes', 0))}")
    fields.append(f"version {_number(snapshot.get('policy_version', 0))}")
    fields.append(f"age {_value(snapshot.get('policy_age_mean'))}")
    if (eta := progress.eta_seconds(snapshot)) is not None:
        fields.append(f"eta {_duration(eta)}")
    return "  ".join(fields)


def panel(
    title: str,
    snapshot: Mapping[str, float],
    results: Mapping[str, PolicyResult],
    bottleneck: str,
    progress: RunProgress,
) -> RenderableType:
    """The live picture: progress, returns, speed, what workers wait for, and the bottleneck."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    titles, *rows = policy_table(results)
    numbers = Table.grid(padding=(0, 4))
    numbers.add_row(*(Text(title, style="dim") for title in titles))
    for row in rows:
        numbers.add_row(*(Text(cell, style="bold cyan") for cell in row))
    parts: list[RenderableType] = [_bar(snapshot, progress), Text(), numbers, Text()]
    workers = _workers(snapshot)
    if workers.row_count:
        parts += [workers, Text()]
    parts.append(Text.assemble(("limit  ", "dim"), bottleneck or "measuring"))
    return Panel(Group(*parts), title=Text(title, style="bold"), title_align="left", padding=(0, 1))


def final_report(summary: Summary, run_dir: Path, plot: Path | None = None) -> str:
    """The report at the end of a run: its results, its speed, its bottleneck, and its folder."""
    head = {"finished": "Finished", "stopped": "Stopped", "failed": "Failed"}[summary.status]
    lines = [f"{head}: {summary.reason}" if summary.reason else head]
    if summary.error:
        lines.append(f"  error       {summary.error}")
    lines += _reached(summary)
    lines.append(
        f"  speed       {_number(summary.env_steps)} steps in {_duration(summary.seconds)}: "
        f"{_number(summary.env_steps_per_second)} steps/s, "
        f"policy version {_number(summary.policy_version)}, "
        f"policy age {_value(summary.policy_age_mean)}"
    )
    if summary.seconds_to_first_update is not None:
        lines.append(f"  start       first update after {summary.seconds_to_first_update:.1f} s")
    for kind, worker in summary.workers.items():
        shares = {"busy": worker.busy, **worker.waits}
        text = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        lines.append(f"  {kind:<11} {text}")
    lines.append(f"  bottleneck  {summary.bottleneck or 'not measured'}")
    if summary.best_checkpoint is not None:
        lines.append(f"  best        checkpoint {summary.best_checkpoint}")
    lines.append(f"  run         {run_dir}")
    if plot is not None:
        lines.append(f"  plot        {plot}")
    if summary.status == "stopped":
        lines.append(f"  go on       srl resume {shlex.quote(str(run_dir))}")
    return printable("\n".join(lines))


def policy_table(
    results: Mapping[str, PolicyResult], *, best: bool = False
) -> list[tuple[str, ...]]:
    """A row of titles, and a row for each policy and for each side that a policy plays.

    A single policy without sides is shown without its name.
    """
    has_evaluations = _has_evaluations(results)
    is_single = len(results) < 2 and not _has_parts(results)

    def row(name: str, train_return: str, eval_return: str, *rest: str) -> tuple[str, ...]:
        names, evals = () if is_single else (name,), (eval_return,) if has_evaluations else ()
        return (*names, train_return, *evals, *(rest if best else rest[:-1]))

    rows = [row("policy", "return", "eval", "episodes", "version", "age", "best checkpoint")]
    for name, result in (results or {"": PolicyResult()}).items():
        returns = (_value(result.episode_return_mean), _value(result.eval_return_mean))
        training = (_number(result.policy_version), _value(result.policy_age_mean))
        rows.append(
            row(name, *returns, _number(result.episodes), *training, _best_checkpoint(result))
        )
        for side, part in result.agents.items():
            returns = (_value(part.episode_return_mean), _value(part.eval_return_mean))
            rows.append(row(f"  {side}", *returns, "", "", "", _best_checkpoint(part)))
        for actors, value in result.actors.items():
            rows.append(row(f"  {actors} actors", _value(value), "", "", "", "", ""))
    return rows


def _best_checkpoint(result: PolicyResult | AgentResult) -> str:
    return "-" if result.best_checkpoint is None else str(result.best_checkpoint)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines; each column is as wide as its widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _reached(summary: Summary) -> list[str]:
    """The returns of a run: one line, or a table if there are several policies or sides."""
    after = f"after {_number(summary.episodes)} episodes"
    results = summary.policies
    if len(results) > 1 or _has_parts(results):
        lines = align(policy_table(results, best=True))
        return [f"  reached     {after}, by the mean of the last ones", *_indented(lines)]
    if not summary.episodes and summary.eval_return_mean is not None:
        return [f"  reached     evaluation {_value(summary.eval_return_mean)}"]
    reached = f"return {_value(summary.episode_return_mean)} (mean of the last episodes)"
    if summary.eval_return_mean is not None:
        reached += f", evaluation {_value(summary.eval_return_mean)}"
    return [f"  reached     {reached} {after}"]


def _indented(lines: list[str]) -> list[str]:
    return [f"{'':<14}{line}" for line in lines]


def _by_policy(results: Mapping[str, PolicyResult], metric: str) -> str:
    """A metric's value, with the names of policies and sides if there are several."""
    texts = []
    for name, result in results.items():
        sides = ", ".join(f"{s} {_value(getattr(a, metric))}" for s, a in result.agents.items())
        value = _value(getattr(result, metric)) + (f" ({sides})" if sides else "")
        texts.append(f"{name} {value}" if len(results) > 1 else value)
    return ", ".join(texts) or "-"


def _has_parts(results: Mapping[str, PolicyResult]) -> bool:
    """Whether sides, or groups of actors, have returns of their own."""
    return any(result.agents or result.actors for result in results.values())


def _has_evaluations(results: Mapping[str, PolicyResult]) -> bool:
    return any(result.eval_return_mean is not None for result in results.values())


def _bar(snapshot: Mapping[str, float], progress: RunProgress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    fraction, eta = progress.fraction(snapshot), progress.eta_seconds(snapshot)
    texts = [_duration(snapshot.get("seconds", 0.0)), f"steps {_steps(snapshot, progress)}"]
    texts.append(f"{_number(snapshot.get('env_steps_per_second'))} steps/s")
    if progress.until:
        texts.append(progress.until.progress(snapshot))
    line = Text("   ".join(texts))
    if fraction is None:
        return line
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    left = f"eta {_duration(eta)}" if eta is not None else ""
    row.add_row(ProgressBar(total=1.0, completed=fraction), Text(f"{fraction:4.0%} {left}"))
    return Group(row, line)


def _workers(snapshot: Mapping[str, float]) -> Any:
    """A row for each worker kind: its busy share, and what it waits for, longest first."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for key, busy in snapshot.items():
        prefix, kind, what = (*key.split(".", 2), "", "")[:3]
        if prefix != "workers" or what != "busy":
            continue
        start = f"workers.{kind}.wait."
        waits = {k.removeprefix(start): v for k, v in snapshot.items() if k.startswith(start)}
        text = ", ".join(
            f"{name} {share:.0%}"
            for name, share in sorted(waits.items(), key=lambda item: -item[1])
            if share >= 0.01
        )
        bar = ProgressBar(total=1.0, completed=busy, width=16, complete_style="green")
        waiting = Text(f"waits for {text}" if text else "", style="dim")
        table.add_row(Text(kind), bar, Text(f"{busy:4.0%} busy"), waiting)
    return table


def _steps(snapshot: Mapping[str, float], progress: RunProgress) -> str:
    steps = _number(snapshot.get("env_steps", 0))
    return f"{steps}/{_number(progress.steps)}" if progress.steps else steps


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
