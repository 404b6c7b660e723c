"""How busy all cores of this machine are."""

from __future__ import annotations


def cores_clock() -> tuple[int, int] | None:
    """(idle, all) clock ticks of all cores since the system started; None if they are unknown."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(number) for number in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return ticks[3] + ticks[4], sum(ticks)


def cores_used(before: tuple[int, int] | None) -> float:
    """Share of the time of all cores that was used since `before`."""
    now = cores_clock()
    if before is None or now is None or now[1] <= before[1]:
        return 0.0
    return 1.0 - (now[0] - before[0]) / (now[1] - before[1])
