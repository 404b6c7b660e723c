"""What a person sees while a run goes on, and the report at its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from srl.services.messages import Note
from srl.services.summary import Summary
from srl.services.until import Until

if TYPE_CHECKING:
    from rich.console import RenderableType

LIVE_SECONDS = 0.25
PLAIN_SECONDS = 5.0


class Progress:
    """How far a run is towards whichever of its goals comes first, and how long that may take."""

    def __init__(
        self, steps: int | None = None, seconds: float | None = None, until: Until | None = None
    ) -> None:
        self.steps, self.seconds, self.until = steps, seconds, until
        self._first: dict[str, float] = {}
        self._begin: tuple[float, float] | None = None

    def fraction(self, snapshot: Mapping[str, float]) -> float | None:
        """Between 0 and 1, or None for a run without a goal."""
        found = []
        if self.steps:
            found.append(snapshot.get("env_steps", 0) / self.steps)
        if self.seconds:
            found.append(snapshot.get("seconds", 0.0) / self.seconds)
        if self.until:
            found.append(self._until_fraction(self.until, snapshot))
        return min(max(found), 1.0) if found else None

    def eta_seconds(self, snapshot: Mapping[str, float]) -> float | None:
        """Seconds left at the pace since the first call, or None while that cannot be told."""
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
        # All but there is not there: only `reached` knows about full windows.
        return 1.0 if until.reached(snapshot) else min(0.99, *fractions, 0.99)


class Display:
    """Shows a run: a live panel on a terminal, a line now and then elsewhere, nothing if quiet.

    `update` draws in the caller's thread and costs nothing while `due` says no.
    """

    def __init__(
        self,
        title: str,
        progress: Progress,
        *,
        quiet: bool = False,
        stream: IO[str] | None = None,
        live: bool | None = None,
    ) -> None:
        self.title, self.progress, self.quiet = title, progress, quiet
        self._stream = stream if stream is not None else sys.stdout
        self._is_live = self._stream.isatty() if live is None else live
        self._next = 0.0
        self._live: Any = None

    def due(self, now: float) -> bool:
        """Whether it is time for another `update`; ask before making a snapshot."""
        return not self.quiet and now >= self._next

    def update(self, snapshot: Mapping[str, float], bottleneck: str, now: float) -> None:
        """Shows the latest numbers; `now` is `time.monotonic()`."""
        if not self.due(now):
            return
        if not self._is_live:
            self._next = now + PLAIN_SECONDS
            print(plain_line(snapshot, self.progress), file=self._stream, flush=True)
            return
        self._next = now + LIVE_SECONDS
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, force_terminal=True)
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
        self._live.update(panel(self.title, snapshot, bottleneck, self.progress), refresh=True)

    def note(self, note: Note) -> None:
        """Prints what a worker has to say; errors even if quiet."""
        if self.quiet and note.level != "error":
            return
        text = f"{note.level}: {note.worker}: {note.text}"
        if self._live is not None:
            from rich.text import Text

            style = {"warning": "yellow", "error": "bold red"}.get(note.level, "")
            self._live.console.print(Text(text, style=style))
        else:
            stream = sys.stderr if note.level == "error" else self._stream
            print(text, file=stream, flush=True)

    def close(self) -> None:
        """Leaves the last picture on the screen and gives the terminal back."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def plain_line(snapshot: Mapping[str, float], progress: Progress) -> str:
    """One line for a log file."""
    fields = [
        f"{_clock(snapshot.get('seconds', 0.0))}",
        f"steps {_steps(snapshot, progress)}",
        f"{_number(snapshot.get('env_steps_per_second'))} steps/s",
        f"return {_value(snapshot.get('episode_return_mean'))}",
    ]
    if (evaluated := snapshot.get("eval_return_mean")) is not None:
        fields.append(f"eval {_value(evaluated)}")
    fields.append(f"episodes {_number(snapshot.get('episodes', 0))}")
    fields.append(f"version {_number(snapshot.get('policy_version', 0))}")
    fields.append(f"age {_value(snapshot.get('policy_age_mean'))}")
    if (eta := progress.eta_seconds(snapshot)) is not None:
        fields.append(f"eta {_clock(eta)}")
    return "  ".join(fields)


def panel(
    title: str, snapshot: Mapping[str, float], bottleneck: str, progress: Progress
) -> RenderableType:
    """The live picture: how far, how well, how fast, who waits, and why."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    shown = {
        "return": _value(snapshot.get("episode_return_mean")),
        "eval": _value(snapshot.get("eval_return_mean")),
        "steps/s": _number(snapshot.get("env_steps_per_second")),
        "episodes": _number(snapshot.get("episodes", 0)),
        "version": _number(snapshot.get("policy_version", 0)),
        "age": _value(snapshot.get("policy_age_mean")),
    }
    if "eval_return_mean" not in snapshot:
        del shown["eval"]
    numbers = Table.grid(padding=(0, 4))
    numbers.add_row(*(Text(name, style="dim") for name in shown))
    numbers.add_row(*(Text(value, style="bold cyan") for value in shown.values()))
    parts: list[RenderableType] = [_bar(snapshot, progress), Text(), numbers, Text()]
    workers = _workers(snapshot)
    if workers.row_count:
        parts += [workers, Text()]
    parts.append(Text.assemble(("limit  ", "dim"), bottleneck or "measuring"))
    return Panel(Group(*parts), title=Text(title, style="bold"), title_align="left", padding=(0, 1))


def final_report(summary: Summary, run_dir: Path, plot: Path | None = None) -> str:
    """The last words of a run: what was reached, how fast, what limited it, and where it is."""
    head = {"finished": "Finished", "stopped": "Stopped", "failed": "Failed"}[summary.status]
    lines = [f"{head}: {summary.reason}" if summary.reason else head]
    if summary.error:
        lines.append(f"  error       {summary.error}")
    reached = f"return {_value(summary.episode_return_mean)} (mean of the last episodes)"
    if summary.eval_return_mean is not None:
        reached += f", evaluation {_value(summary.eval_return_mean)}"
    lines.append(f"  reached     {reached} after {_number(summary.episodes)} episodes")
    lines.append(
        f"  speed       {_number(summary.env_steps)} steps in {_clock(summary.seconds)}: "
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
    return "\n".join(lines)


def _bar(snapshot: Mapping[str, float], progress: Progress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    fraction, eta = progress.fraction(snapshot), progress.eta_seconds(snapshot)
    texts = [_clock(snapshot.get("seconds", 0.0)), f"steps {_steps(snapshot, progress)}"]
    if progress.until:
        texts.append(progress.until.progress(snapshot))
    line = Text("   ".join(texts))
    if fraction is None:
        return line
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    left = f"eta {_clock(eta)}" if eta is not None else ""
    row.add_row(ProgressBar(total=1.0, completed=fraction), Text(f"{fraction:4.0%} {left}"))
    return Group(row, line)


def _workers(snapshot: Mapping[str, float]) -> Any:
    """A row for each worker kind: busy, and what it waits for, longest first."""
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


def _steps(snapshot: Mapping[str, float], progress: Progress) -> str:
    steps = _number(snapshot.get("env_steps", 0))
    return f"{steps}/{_number(progress.steps)}" if progress.steps else steps


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
