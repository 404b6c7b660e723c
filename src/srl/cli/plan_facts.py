"""What a plan says about its streams, in numbers: for the text and for the drawing."""

from __future__ import annotations

from math import prod

from srl.arena.arena import HeapArena
from srl.data.spec import AgentSpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.data.tree import flatten
from srl.services.parameters import ParameterReader
from srl.streams.inference import InferenceClient
from srl.streams.sample import SampleSource
from srl.workers.wiring import InferencePlan, Plan, PolicyPlan, SamplePlan


def region_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of every stream and of every policy's weights, by region, as the launcher reserves."""
    arena = HeapArena()  # Its pages are never written, so they cost nothing.
    for inference in plan.inference.values():
        InferenceClient(inference.spec, arena, 0)
    for sample in plan.samples.values():
        SampleSource(sample.spec, arena, 0)
    for policy in plan.policies.values():
        ParameterReader(policy.parameters, arena)
    return {name: int(region.size) for name, region in arena.regions.items()}


def shared_bytes(plan: Plan) -> int:
    """Bytes of what lies in shared memory; a serial plan has none."""
    if len(plan.processes) == 1:
        return 0
    sizes = region_bytes(plan)
    private = {f"inference/{key}" for key, p in plan.inference.items() if p.carrier == "inline"}
    private |= {f"sample/{key}" for key, p in plan.samples.items() if p.carrier == "inline"}
    return sum(size for name, size in sizes.items() if name not in private)


def size_text(nbytes: int) -> str:
    """Bytes for people."""
    number, unit = float(nbytes), "B"
    for bigger in ("kB", "MB", "GB"):
        if number < 1000:
            break
        number, unit = number / 1000, bigger
    return f"{number:.0f} {unit}" if number >= 100 or unit == "B" else f"{number:.1f} {unit}"


def agent_text(agent: AgentSpec) -> str:
    """What an agent sees and does."""
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
    """Numbers in a policy's weights and buffers."""
    return sum(prod(shape) for shape, _ in policy.parameters.shapes.values())


def inference_text(stream: InferencePlan) -> str:
    """How requests are grouped."""
    lanes = stream.spec.num_lanes
    return f"{lanes} x {stream.spec.rows} rows" if lanes > 1 else f"{stream.spec.rows} rows"


def sample_text(stream: SamplePlan) -> str:
    """How many fragments fit, and their shape."""
    spec = stream.spec.trajectory
    return f"{stream.spec.slots} slots of [{spec.capacity}, {spec.rows}]"


def age_text(stream: SamplePlan) -> str:
    """How old data may become."""
    age = stream.spec.max_policy_age
    return "policy age unbounded" if age is None else f"policy age at most {age}"


def envs_text(plan: Plan) -> str:
    """What one actor steps."""
    groups = f"{plan.num_groups} groups of " if plan.num_groups > 1 else ""
    return f"{groups}{plan.envs_per_group} environments"
