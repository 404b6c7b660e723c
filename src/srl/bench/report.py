"""Results of `srl bench` as text and as Markdown tables."""

from __future__ import annotations

from typing import Any

from srl.bench.workloads import WORKLOADS


def list_workloads() -> str:
    """A list of the workloads with their description, environment and batch."""
    lines = []
    for name, work in WORKLOADS.items():
        ppo = f"{work.envs} x {work.horizon}, {_count_text(work.epochs, 'epoch')}"
        ppo += f" x {_count_text(work.minibatches, 'minibatch')}"
        lines += [f"{name:<4} {work.about}", f"     {work.env}, {ppo}"]
    return "\n".join(lines)


def _count_text(count: int, what: str) -> str:
    plural = "es" if what.endswith("ch") and what != "epoch" else "s"
    return f"{count} {what}{plural if count != 1 else ''}"


def describe(record: dict[str, Any]) -> str:
    """The result of one workload as a small table, without the parts that were not measured."""
    counts = ", ".join(f"{key}={value}" for key, value in record["counts"].items())
    lines = [f"{record['workload']}: {record['env']}, layout {record['layout']}, {counts}"]
    rates = (
        ("environment only", "env_only", ""),
        ("+ inference", "with_inference", ""),
        ("+ training", "steps_per_second", _spread(record)),
        ("limit", "limit", f", set by {record['limit_binds']}"),
    )
    lines += [
        f"  {name:<20} {record[key]:>12,.0f} steps/s{more}"
        for name, key, more in rates
        if record[key] is not None
    ]
    if record["share_of_limit"] is not None:
        lines.append(f"  {'share of the limit':<20} {record['share_of_limit']:>12.0%}")
    lines.append(f"  {'policy age':<20} {record['policy_age_mean']:>12.2f} versions (mean)")
    if costs := record["costs_microseconds"]:
        lines.append(
            f"  {'cost of a step':<20} environment {costs['env']:,.1f}, inference "
            f"{costs['inference']:,.1f}, training {costs['training']:,.1f} core-us; chains: "
            f"collecting {costs['collect_chain']:,.1f}, training {costs['train_chain']:,.1f} us"
        )
    if taken := record["core_microseconds"]:
        lines.append(f"  {'core time of a step':<20} {_core_time(taken, costs)}")
        lines.append(f"  {'cores idle':<20} {record['idle_cores']:>12.0%}")
    for kind, shares in record["workers"].items():
        text = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        lines.append(f"  {kind:<20} {text}")
    lines.append(f"  {'held back by':<20} {record['bottleneck']}")
    lines += [
        f"  {'not to be quoted':<20} {doubt}; measure again when the machine is quiet"
        for doubt in record["doubtful"]
    ]
    return "\n".join(lines)


def _core_time(taken: dict[str, float], costs: dict[str, float] | None) -> str:
    """The core time of a step by worker kind, beside the core time that the limit counts."""
    each = ", ".join(f"{kind} {cost:,.1f}" for kind, cost in sorted(taken.items()))
    text = f"{each}: {sum(taken.values()):,.1f} core-us together"
    if costs:
        counted = costs["env"] + costs["inference"] + costs["training"]
        text += f" where the limit counts {counted:,.1f}"
    return text


def settings_line(record: dict[str, Any]) -> str:
    """The settings that decide how much work a step is. A comparison needs equal ones."""
    shown = (
        *("learning_rate", "gamma", "gae_lambda", "clip", "value_coefficient"),
        *("entropy_coefficient", "max_grad_norm", "normalize_advantages", "max_policy_age"),
    )
    algorithm = record["algorithm"]
    text = ", ".join(f"{key}={algorithm[key]}" for key in shown if key in algorithm)
    network = record["network"]
    norms = ", ".join(f"{k}={network[k]}" for k in network if k.startswith("normalize_"))
    return f"float32, {record['parameters']:,} parameters, {text}, {norms}, evaluation off"


def markdown(records: list[dict[str, Any]]) -> list[str]:
    """Results of several workloads as a table."""
    lines = [
        "| workload | layout | environment only | + inference | + training | limit | share | age |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for r in records:
        cells = [
            "-" if r[key] is None else f"{r[key]:,.0f}"
            for key in ("env_only", "with_inference", "steps_per_second")
        ]
        cells[-1] += _spread(r)
        if r["limit"] is None:
            cells += ["-", "-"]
        else:
            cells += [f"{r['limit']:,.0f} ({r['limit_binds']})", f"{r['share_of_limit']:.0%}"]
        lines.append(
            f"| {r['workload']} | {r['layout']} | {' | '.join(cells)} "
            f"| {r['policy_age_mean']:.2f} |"
        )
    return lines


def _spread(record: dict[str, Any]) -> str:
    rates = [one["steps_per_second"] for one in record["rounds"]]
    return f" ({min(rates):,.0f} - {max(rates):,.0f})" if len(rates) > 1 else ""
