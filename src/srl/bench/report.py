"""Results as people read them."""

from __future__ import annotations

from typing import Any

from srl.bench.workloads import WORKLOADS

NOISE = 0.05
"""Share of the machine that other programs may use before a result is doubtful."""


def list_workloads() -> str:
    """The workloads, what they are, and how much of it a batch has."""
    lines = []
    for name, work in WORKLOADS.items():
        ppo = f"{work.envs} x {work.horizon}, {_many(work.epochs, 'epoch')}"
        ppo += f" x {_many(work.minibatches, 'minibatch')}"
        lines += [f"{name:<4} {work.about}", f"     {work.env}, {ppo}"]
    return "\n".join(lines)


def _many(count: int, what: str) -> str:
    plural = "es" if what.endswith("ch") and what != "epoch" else "s"
    return f"{count} {what}{plural if count != 1 else ''}"


def describe(record: dict[str, Any]) -> str:
    """One workload's result as a small table."""
    counts = ", ".join(f"{key}={value}" for key, value in record["counts"].items())
    lines = [
        f"{record['workload']}: {record['env']}, layout {record['layout']}, {counts}",
        f"  {'environment only':<20} {record['env_only']:>12,.0f} steps/s",
        f"  {'+ inference':<20} {record['with_inference']:>12,.0f} steps/s",
        f"  {'+ training':<20} {record['steps_per_second']:>12,.0f} steps/s{_spread(record)}",
        f"  {'limit':<20} {record['limit']:>12,.0f} steps/s, set by {record['limit_binds']}",
        f"  {'share of the limit':<20} {record['share_of_limit']:>12.0%}",
        f"  {'policy age':<20} {record['policy_age_mean']:>12.2f} versions (mean)",
    ]
    costs = record["costs_microseconds"]
    lines.append(
        f"  {'cost of a step':<20} environment {costs['env']:,.1f}, inference "
        f"{costs['inference']:,.1f}, training {costs['training']:,.1f} core-us; chains: "
        f"collecting {costs['collect_chain']:,.1f}, training {costs['train_chain']:,.1f} us"
    )
    for kind, shares in record["workers"].items():
        text = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        lines.append(f"  {kind:<20} {text}")
    lines.append(f"  {'held back by':<20} {record['bottleneck']}")
    if record["other_load"] > NOISE:
        lines.append(
            f"  {'not to be quoted':<20} other programs used {record['other_load']:.0%} of the "
            "machine; measure again when it is quiet"
        )
    return "\n".join(lines)


def settings_line(record: dict[str, Any]) -> str:
    """What decides how much work a step is, to be equal on both sides of a comparison."""
    shown = (
        *("learning_rate", "gamma", "gae_lambda", "clip", "value_coefficient"),
        *("entropy_coefficient", "max_grad_norm", "normalize_advantages", "max_policy_age"),
    )
    algorithm = record["algorithm"]
    text = ", ".join(f"{key}={algorithm[key]}" for key in shown if key in algorithm)
    network = record["network"]
    norms = ", ".join(f"{k}={network[k]}" for k in network if k.startswith("normalize_"))
    return f"float32, {text}, {norms}, evaluation off"


def markdown(records: list[dict[str, Any]]) -> list[str]:
    """Results of several workloads as a table."""
    lines = [
        "| workload | layout | environment only | + inference | + training | limit | share | age |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for r in records:
        cells = [f"{r[key]:,.0f}" for key in ("env_only", "with_inference", "steps_per_second")]
        cells[-1] += _spread(r)
        cells += [f"{r['limit']:,.0f} ({r['limit_binds']})", f"{r['share_of_limit']:.0%}"]
        lines.append(
            f"| {r['workload']} | {r['layout']} | {' | '.join(cells)} "
            f"| {r['policy_age_mean']:.2f} |"
        )
    return lines


def _spread(record: dict[str, Any]) -> str:
    rates = [one["steps_per_second"] for one in record["rounds"]]
    return f" ({min(rates):,.0f} - {max(rates):,.0f})" if len(rates) > 1 else ""
