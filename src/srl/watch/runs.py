"""The runs in a folder: which there are, and what their files say. Nothing is imported or executed.

The page names runs, logs and films by names that it was given here. They are looked up among what
is there, and never joined to a path.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srl.errors import RunError, SrlError, printable
from srl.files import read_part
from srl.launch.run.status import RunStatus, read_status
from srl.reporting.summary import SUMMARY_FILE, Summary, read_summary
from srl.services.checkpoint_names import is_checkpoint
from srl.services.metric_names import PolicyResult
from srl.watch.history import History, last_line

CONFIG_FILE = "config.yaml"
FILMS = {
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".gif": "image/gif",
    ".png": "image/png",
}
"""Files of a run that the page shows, and what they are. SVG is not among them: it may have
scripts."""
LOG_BYTES = 1 << 16
"""Longest part of a log that is sent at once."""
SILENT_SECONDS = 15.0
"""A run whose status is older, and that has not ended, does not run any more."""
_DEPTH = 4
_MAX_FOLDERS = 20_000
_RESCAN_SECONDS = 3.0
_SCAN_SHARE = 200
"""A folder with very many others is looked through less often: for 1/_SCAN_SHARE of the time."""
_SEED_LINE = re.compile(r"^seed:\s*(\d+)", re.M)


@dataclass(frozen=True)
class _Stamped:
    """What a file held, and the time and size by which a change is noticed."""

    stamp: tuple[int, int]
    content: Any


class WatchedRun:
    """One run directory, as it is now."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.history = History(path)
        self._kept: dict[str, _Stamped] = {}

    @property
    def status(self) -> RunStatus | None:
        """What the run last said about itself; None if it has not said anything yet."""
        return self._read("status.json", read_status)  # type: ignore[no-any-return]

    @property
    def summary(self) -> Summary | None:
        """How the run went; None while it goes on."""
        return self._read(SUMMARY_FILE, read_summary)  # type: ignore[no-any-return]

    def state(self, now: float) -> str:
        """running, finished, stopped, failed, silent (it was killed) or starting."""
        if (summary := self.summary) is not None:
            return summary.status
        if (status := self.status) is not None:
            return "running" if now - status.written < SILENT_SECONDS else "silent"
        try:
            old = now - (self.path / CONFIG_FILE).stat().st_mtime > 4 * SILENT_SECONDS
        except OSError:
            old = True
        return "silent" if old else "starting"

    def line(self, now: float) -> dict[str, Any]:
        """The run as a line of the list."""
        status, summary, state = self.status, self.summary, self.state(now)
        last = self._read("metrics.jsonl", last_line) or {}
        policies: Mapping[str, PolicyResult] = {}
        if state == "running" and status is not None:
            policies = status.policies
        elif summary is not None:
            policies = summary.policies
        return {
            "name": self.name,
            "state": state,
            "env_steps": last.get("env_steps", 0),
            "seconds": last.get("seconds", 0.0),
            "rate": last.get("env_steps_per_second") if state == "running" else None,
            "layout": status.layout if status is not None else "",
            "returns": {
                owner: result.episode_return_mean for owner, result in _results(policies).items()
            },
            "why": (summary.error or summary.reason) if summary is not None else "",
        }

    def results(self) -> dict[str, PolicyResult]:
        """The result of each policy, or of the run so far."""
        source = self.summary or self.status
        return source.policies if source is not None else {}

    def seed(self) -> int | None:
        """The seed in its configuration."""
        text = self._read(CONFIG_FILE, lambda path: _text(path / CONFIG_FILE)) or ""
        found = _SEED_LINE.search(text)
        return int(found[1]) if found else None

    def checkpoints(self) -> list[int]:
        """Numbers of its checkpoints."""
        names = _names(self.path / "checkpoints", folders=True)
        return sorted(int(name) for name in names if is_checkpoint(name))

    def logs(self) -> list[str]:
        """The names of its logs, that of the controller first."""
        names = [name for name in _names(self.path / "logs") if name.endswith(".log")]
        return sorted(names, key=lambda name: (name != "controller.log", name))

    def log(self, name: str, offset: int) -> tuple[str, int, int]:
        """A part of a log from `offset` on (negative: its end), where the part begins, and where
        the next one does. Raises RunError for a log that the run does not have."""
        if name not in self.logs():
            raise RunError(f"{self.name}: no log {printable(name)!r}.")
        offset = -LOG_BYTES if offset < 0 else offset
        try:
            data, size, _ = read_part(self.path / "logs" / name, offset, LOG_BYTES)
        except (OSError, SrlError) as error:
            raise RunError(f"{self.name}: log {name!r} cannot be read ({error}).") from None
        begin = max(0, size + offset) if offset < 0 else offset
        return printable(data.decode(errors="replace")), begin, begin + len(data)

    def films(self) -> list[str]:
        """The names of its films and pictures."""
        return sorted(name for name in _names(self.path) if Path(name).suffix in FILMS)

    def film(self, name: str) -> tuple[Path, str]:
        """The path and the type of a film. Raises RunError for one that the run does not have."""
        if name not in self.films():
            raise RunError(f"{self.name}: no film {printable(name)!r}.")
        return self.path / name, FILMS[Path(name).suffix]

    def _read(self, file: str, reader: Any) -> Any:
        """The content of a file, read again only if the file has changed; None if it is not there,
        or cannot be read."""
        try:
            found = (self.path / file).stat()
        except OSError:
            return None
        stamp = (found.st_mtime_ns, found.st_size)
        kept = self._kept.get(file)
        if kept is None or kept.stamp != stamp:
            try:
                content = reader(self.path)
            except (OSError, SrlError):
                content = None
            kept = self._kept[file] = _Stamped(stamp, content)
        return kept.content


class Runs:
    """The run at a path, or all runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[str, WatchedRun] = {}
        self._next_scan = float("-inf")

    @property
    def is_one(self) -> bool:
        """Whether the path is that of one run."""
        return (self.root / CONFIG_FILE).is_file()

    def all(self) -> dict[str, WatchedRun]:
        """Every run by name, looked for again every few seconds."""
        now = time.monotonic()
        if now >= self._next_scan:
            found = _find_runs(self.root)
            self._runs = {
                name: self._runs.get(name) or WatchedRun(name, path)
                for name, path in sorted(found.items())
            }
            took = time.monotonic() - now
            self._next_scan = now + max(_RESCAN_SECONDS, _SCAN_SHARE * took)
        return self._runs

    def get(self, name: str) -> WatchedRun:
        """A run by its name. Raises RunError if there is no such run."""
        run = self.all().get(name)
        if run is None:
            raise RunError(f"{self.root}: no run {printable(name)!r} here.")
        return run


def _find_runs(root: Path) -> dict[str, Path]:
    """The folders of runs at or below a path, by name. Links are not followed."""
    if (root / CONFIG_FILE).is_file():
        return {root.resolve().name: root}
    found: dict[str, Path] = {}
    todo, looked = [(root, 0)], 0
    while todo and looked < _MAX_FOLDERS:
        folder, depth = todo.pop()
        looked += 1
        try:
            entries = [e for e in os.scandir(folder) if not e.name.startswith(".")]
        except OSError:
            continue
        if depth and any(e.name == CONFIG_FILE and e.is_file() for e in entries):
            found[printable(str(folder.relative_to(root)))] = folder
        elif depth < _DEPTH:
            todo += [(Path(e.path), depth + 1) for e in entries if e.is_dir(follow_symlinks=False)]
    return found


def _names(folder: Path, *, folders: bool = False) -> list[str]:
    """The names of the files (or the folders) in a folder that are no links. A link to a folder has
    none."""
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as entries:
            wanted = stat.S_ISDIR if folders else stat.S_ISREG
            return [e.name for e in entries if wanted(e.stat(follow_symlinks=False).st_mode)]
    except OSError:
        return []


def _text(path: Path) -> str:
    return read_part(path, 0, LOG_BYTES)[0].decode(errors="replace")


def _results(policies: Mapping[str, PolicyResult]) -> dict[str, Any]:
    """The results that rate a run: of each policy, or of each side where it plays several."""
    found: dict[str, Any] = {}
    for name, result in policies.items():
        if result.learns and result.agents:
            found.update((f"{name}/{side}", one) for side, one in result.agents.items())
        elif result.learns:
            found[name] = result
    return found
