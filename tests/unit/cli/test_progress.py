"""What `srl eval` and `srl play` say while they play."""

from __future__ import annotations

import sys

import pytest

from srl.cli.play import EpisodeProgress


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.mark.parametrize(
    ("terminal", "said"),
    [
        (
            True,
            "\r1 of 20 episodes, 1,600 steps\x1b[K\r2 of 20 episodes, 3,200 steps\x1b[K\r\x1b[K",
        ),
        (False, "2 of 20 episodes, 3,200 steps\n"),
    ],
)
def test_progress_is_told_on_stderr_now_and_then(
    terminal: bool,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    clock = Clock()
    with EpisodeProgress(20, clock) as progress:
        for time, episodes, steps in ((0.1, 0, 8), (1.0, 1, 1600), (1.1, 1, 1608), (11.0, 2, 3200)):
            clock.time = time
            progress(episodes, steps)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == said
