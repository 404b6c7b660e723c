"""Short texts about the agents and streams of a plan, for its printed form and its drawing."""

from __future__ import annotations

from math import prod

from srl.casting import MAIN
from srl.data.spec import AgentSpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.data.table import TableSpec
from srl.data.tree import flatten
from srl.plan import InferencePlan, Plan, PolicyPlan, SamplePlan


def agent_text(agent: AgentSpec) -> str:
    """The observation and the action of an agent."""
    seen = ", ".join(f"{path or 'obs'} {leaf}" for path, leaf in flatten(agent.obs).items())
    mask = ", masked" if agent.has_action_mask else ""
    return f"{seen} -> {_action(agent)}{mask}"


def _action(agent: AgentSpec) -> str:
    match agent.action:
        case Discrete(n):
            return f"1 of {n}"
        case MultiDiscrete(nvec):
            return f"1 of each of {list(nvec)}"
        case MultiBinary(n):
            return f"{n} switches"
        case Box(shape):
            return f"float32{list(shape)}"


def num_parameters(policy: PolicyPlan) -> int:
    """How many numbers a policy has in its weights and buffers."""
    return sum(prod(shape) for shape, _ in policy.parameters.shapes.values())


def inference_text(stream: InferencePlan) -> str:
    """How many request slots there are, and how many rows each has."""
    slots = stream.spec.num_slots
    return f"{slots} x {stream.spec.rows} rows" if slots > 1 else f"{stream.spec.rows} rows"


def sample_text(stream: SamplePlan) -> str:
    """How many records a stream holds, and their shape."""
    spec = stream.spec.record
    if isinstance(spec, TableSpec):
        return f"{stream.spec.slots} slots of {spec.capacity} rows"
    return f"{stream.spec.slots} slots of [{spec.capacity}, {spec.rows}]"


def age_text(stream: SamplePlan) -> str:
    """The bound on policy age."""
    age = stream.spec.max_policy_age
    return "policy age unbounded" if age is None else f"policy age at most {age}"


def num_envs(plan: Plan) -> int:
    """The environments of all actors with which the run begins."""
    each = plan.envs_per_group * plan.num_groups
    extra = sum(worker.group in plan.actors and worker.group != MAIN for worker in plan.workers)
    return int(plan.experiment["actor"]["envs"]) + each * extra


def envs_text(plan: Plan, group: str) -> str:
    """The environments that one actor of a group steps, and who plays there if groups differ."""
    groups = f"{plan.num_groups} groups of " if plan.num_groups > 1 else ""
    text = f"{groups}{plan.envs_per_group} environments"
    own = plan.actors.get(group)
    if own is None:
        return text
    args = ", ".join(f"{name}={value}" for name, value in own.env_args.items())
    casts = [actors.agents for actors in plan.actors.values()]
    cast = "; ".join(f"{policy} plays {' '.join(agents)}" for policy, agents in own.agents.items())
    shown = [args, cast if any(other != casts[0] for other in casts) else ""]
    return text + "".join(f" ({part})" for part in shown if part)
