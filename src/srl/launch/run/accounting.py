"""Accounts of a run: its sample streams over all hosts, and the counts in its summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from srl.arena.arena import Arena
from srl.plan import Plan, WorkerPlan
from srl.services.worker_stats import StatsTable
from srl.streams.sample_accounting import StreamAccount, account, close_account, sum_accounts


class RunAccounts:
    """Adds up the accounts of every stream: where its fragments went."""

    def __init__(self, arena: Arena) -> None:
        """`arena` holds the streams of the head's host."""
        self._arena = arena
        self._plan: Plan | None = None
        self._lost_hosts: list[dict[str, StreamAccount]] = []

    def attach(self, plan: Plan) -> None:
        """Sets the plan, which names the streams."""
        self._plan = plan

    def lose(self, accounts: Mapping[str, StreamAccount]) -> None:
        """Keeps the last accounts of a lost host; its fragments in flight count as dropped."""
        self._lost_hosts.append({name: close_account(kept) for name, kept in accounts.items()})

    def all(self, others: Iterable[Mapping[str, StreamAccount]]) -> dict[str, StreamAccount]:
        """The accounts by stream name in the graph: of the head's host, of the `others` that are
        here, and of lost hosts."""
        assert self._plan is not None
        remote = [*others, *self._lost_hosts]
        found: dict[str, list[StreamAccount]] = {}
        for name, stream in self._plan.samples.items():
            accounts = found.setdefault(stream.stream, [])
            accounts.append(account(stream.spec, self._arena))
            accounts += [by_stream[name] for by_stream in remote if name in by_stream]
        return {name: sum_accounts(accounts) for name, accounts in found.items()}


def final_counts(
    streams: Mapping[str, StreamAccount], stats_table: StatsTable, trainers: Sequence[WorkerPlan]
) -> dict[str, float]:
    """Counts for the summary: accounts of streams, environment failures, dropped actions and
    lost updates.

    `trainers` are the first trainers of each policy.
    """
    counts: dict[str, float] = {}
    for name, kept in streams.items():
        at = f"samples.{name}"
        counts |= {
            f"{at}.produced": kept.produced,
            f"{at}.consumed": kept.consumed,
            f"{at}.in_flight": kept.in_flight,
        }
        counts |= {f"{at}.dropped.{reason}": n for reason, n in kept.dropped.items()}
    rows = stats_table.rows.values()
    counts["env_failures"] = sum(row.get("count_env_failures") for row in rows)
    counts["actions.dropped"] = sum(row.get("count_dropped_actions") for row in rows)
    for worker in trainers:
        row, at = stats_table.rows[worker.name], f"updates.{worker.trains[0]}"
        counts[f"{at}.lost"] = row.get("count_lost_updates")
        counts[f"{at}.too_old"] = row.get("count_too_old_updates")
    return counts
