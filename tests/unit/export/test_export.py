"""An exported policy answers what `policy.act` answers, for every kind of network and space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from srl.acting import ActingPolicy
from srl.data.tree import Tree, flatten, tree_map
from srl.envs.spaces import agent_spaces, agent_spec
from srl.errors import ConfigError
from srl.export.files import export_policy
from srl.export.portable import PortablePolicy
from srl.policies.actor_critic import ActorCritic
from srl.policies.deterministic import Deterministic
from srl.policies.protocol import Policy, PolicyOutput
from srl.policies.q_network import QNetwork
from srl.policies.random import RandomConfig, RandomPolicy
from srl.policies.squashed_gaussian import SquashedGaussian

ROWS = 3
STEPS = 40
VECTOR = spaces.Box(-5.0, 5.0, (4,), np.float64)
IMAGE = spaces.Box(0, 255, (12, 12), np.uint8)
FOUR = spaces.Discrete(4, start=2)
TWO = spaces.Box(np.array([-1.0, -3.0], np.float32), np.array([0.5, 2.0], np.float32))
CHOICES = spaces.MultiDiscrete([3, 5])
MIXED = spaces.Dict(
    {
        "camera": IMAGE,
        "speed": VECTOR,
        "gear": spaces.Discrete(3, start=1),
        "flags": spaces.MultiBinary(2),
    }
)
MASKED = spaces.Dict({"observation": VECTOR, "action_mask": spaces.MultiBinary(4)})
JOINT = spaces.Dict({"observation": VECTOR, "action_mask": spaces.Box(0, 1, (3, 5), np.int8)})
ENTITIES = spaces.Dict(
    {
        "box": spaces.Box(-1, 1, (5, 3), np.float32),
        "box_visible": spaces.MultiBinary(5),
        "box_exist": spaces.MultiBinary(5),
        "lidar": spaces.Box(0, 1, (6, 1), np.float32),
        "self": VECTOR,
    }
)
Kind = tuple[type[Policy], spaces.Space[Any], spaces.Space[Any], dict[str, Any], int]
KINDS: dict[str, Kind] = {
    "discrete": (ActorCritic, VECTOR, FOUR, {"normalize_obs": True}, 1),
    "multi_discrete": (ActorCritic, VECTOR, CHOICES, {"normalize_returns": True}, 1),
    "switches": (ActorCritic, VECTOR, spaces.MultiBinary(3), {"activation": "elu"}, 1),
    "box": (ActorCritic, VECTOR, TWO, {"normalize_obs": True, "initial_log_std": 1.0}, 1),
    "rounded": (ActorCritic, VECTOR, spaces.Box(-2, 3, (2, 2), np.int32), {}, 1),
    "masked": (ActorCritic, MASKED, FOUR, {}, 1),
    "joint": (ActorCritic, JOINT, CHOICES, {}, 1),
    "image_stack": (ActorCritic, IMAGE, FOUR, {"image_features": 32}, 4),
    "mixed": (ActorCritic, MIXED, FOUR, {"normalize_obs": True, "image_features": 16}, 1),
    "lstm": (ActorCritic, VECTOR, FOUR, {"recurrent": "lstm", "recurrent_size": 16}, 2),
    "two_lstms": (ActorCritic, VECTOR, TWO, {"recurrent": "lstm", "shared": False}, 1),
    "gru": (ActorCritic, MASKED, FOUR, {"recurrent": "gru", "normalize_obs": True}, 1),
    "entities": (ActorCritic, ENTITIES, CHOICES, {"encoder": "entities", "normalize_obs": True}, 1),
    "q": (QNetwork, VECTOR, FOUR, {"normalize_obs": True}, 1),
    "q_dueling": (QNetwork, MASKED, FOUR, {"dueling": True, "head_sizes": (16,)}, 1),
    "q_quantiles": (QNetwork, IMAGE, FOUR, {"num_quantiles": 8, "dueling": True}, 3),
    "q_lstm": (QNetwork, VECTOR, FOUR, {"recurrent": "lstm", "num_quantiles": 5}, 1),
    "squashed": (SquashedGaussian, VECTOR, TWO, {"normalize_obs": True}, 1),
    "deterministic": (Deterministic, VECTOR, TWO, {}, 1),
}


def acting(name: str) -> ActingPolicy:
    """A policy with random weights that are far from zero, and statistics that are not trivial."""
    kind, observation, action, settings, stack = KINDS[name]
    torch.manual_seed(3)
    spec = agent_spec(observation, action, stack=stack)
    policy = kind(spec, kind.Config(**settings))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for key, buffer in policy.named_buffers():
            if key.endswith("mean"):
                buffer.normal_()
            if key.endswith("var"):
                buffer.uniform_(0.5, 2.0)
    policy.pack()
    return ActingPolicy(policy, name, agent_spaces(observation, action))


class Session:
    """An exported policy in onnxruntime, with its state."""

    def __init__(self, file: Path) -> None:
        self.session = onnxruntime.InferenceSession(file)
        self.inputs = {port.name: port for port in self.session.get_inputs()}
        self.state: dict[str, np.ndarray] = {}

    def __call__(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kinds = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
        rows = len(given["is_first"])
        for name, port in self.inputs.items():
            if name.startswith("state.") and name not in self.state:
                shape = (rows, *port.shape[1:])
                self.state[name] = np.zeros(shape, kinds[port.type])
        names = [port.name for port in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, given | self.state), strict=True))
        self.state = {name: found[f"next_{name}"] for name in self.state}
        return found


def observations(policy: ActingPolicy, space: spaces.Space[Any], steps: int) -> list[Tree]:
    """Batches of samples of a space, with masks that allow something."""
    space.seed(5)
    found = []
    for _ in range(steps):
        rows = [space.sample() for _ in range(ROWS)]
        batch = tree_map(lambda *parts: np.stack(parts), *rows)
        if isinstance(batch, dict) and "action_mask" in batch:
            batch["action_mask"].reshape(ROWS, -1)[:, 1] = 1
        found.append(batch)
    return found


def inputs_of(policy: ActingPolicy, batch: Tree) -> dict[str, np.ndarray]:
    """The observation and the mask as inputs of the graph."""
    obs, mask = policy.spaces.take_mask(batch, {})
    specs = flatten(policy.agent.obs)
    given = {
        f"obs.{path}" if path else "obs": np.asarray(leaf).astype(specs[path].dtype)
        for path, leaf in flatten(obs).items()
    }
    if mask is not None:
        given["action_mask"] = np.asarray(mask, bool).reshape(ROWS, -1)
    return given


def check(name: str, explore: bool, folder: Path, steps: int = STEPS) -> None:
    policy = acting(name)
    file = export_policy(policy, folder / f"{name}.onnx", explore=explore)
    session = Session(file)
    rng = np.random.default_rng(0)
    noise = [port for key, port in session.inputs.items() if key.startswith(("uniform", "normal"))]
    assert bool(noise) == explore
    starts = rng.random((steps, ROWS)) < 0.15
    starts[0] = True
    chosen = []
    for batch, first in zip(observations(policy, KINDS[name][1], steps), starts, strict=True):
        drawn = {
            port.name: (
                rng.random((ROWS, *port.shape[1:]), np.float32)
                if port.name.startswith("uniform")
                else rng.standard_normal((ROWS, *port.shape[1:]), np.float32)
            )
            for port in noise
        }
        found = session(inputs_of(policy, batch) | {"is_first": first} | drawn)
        expected = policy.act(batch, is_first=first)
        chosen.append(found["action"])
        assert found["action"].dtype == expected.dtype
        assert found["action"].shape == expected.shape
        _expect_extras(policy, found, explore)
        runner = policy._runner
        assert runner is not None
        for path, kept in flatten(runner._state or {}).items():
            np.testing.assert_allclose(found[f"next_state.memory.{path}"], kept, atol=1e-4)
        if explore:
            continue
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found["action"], expected, atol=1e-4)
        else:
            np.testing.assert_array_equal(found["action"], expected)
    assert len(np.unique(np.concatenate(chosen), axis=0)) > 1


def _expect_extras(policy: ActingPolicy, found: dict[str, np.ndarray], explore: bool) -> None:
    """Compares the networks' outputs for the observation that `policy.act` has just seen."""
    runner, module = policy._runner, policy.module
    assert runner is not None
    leaves_seen = {path: torch.as_tensor(x) for path, x in flatten(runner._obs).items()}
    with torch.inference_mode():
        if isinstance(module, ActorCritic):
            state = tree_map(torch.as_tensor, runner._state) if runner._state else None
            if state is None:
                out, value = module._outputs(leaves_seen)
            else:
                own = state if module.shared else state["actor"]
                other = state if module.shared else state["critic"]
                out, value = module._heads(own["h"], other["h"])
            np.testing.assert_allclose(found["logits"], out.numpy(), atol=1e-4)
            np.testing.assert_allclose(found["value"], value.numpy(), atol=1e-4, rtol=1e-4)
        elif isinstance(module, QNetwork):
            features = (
                torch.as_tensor(runner._state["h"])
                if module.core is not None
                else module._features(leaves_seen)
            )
            np.testing.assert_allclose(
                found["values"], module.head.means(features).numpy(), atol=1e-4
            )


class Tossing(Policy):
    """A policy of a user's own, without a network of SRL."""

    Config = RandomConfig
    extras_spec: Tree = {}  # noqa: RUF012
    branches = False

    def __init__(self, agent: Any, config: RandomConfig) -> None:
        super().__init__(agent, config)
        self.linear = torch.nn.Linear(4, 4)

    def act(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        scores = self.linear(obs)
        if self.branches and bool(scores.sum() > 0):
            scores = -scores
        noise = torch.rand(scores.shape, generator=generator) * explore[:, None]
        return PolicyOutput((scores + noise).argmax(1), None, {})


class Branching(Tossing):
    branches = True


def own(kind: type[Policy], action: spaces.Space[Any] = FOUR) -> ActingPolicy:
    torch.manual_seed(0)
    policy = kind(agent_spec(VECTOR, action), RandomConfig())
    return ActingPolicy(policy, "own", agent_spaces(VECTOR, action))


@pytest.mark.parametrize("name", KINDS)
def test_onnxruntime_gives_what_the_policy_gives(name: str, tmp_path: Path) -> None:
    check(name, False, tmp_path)


@pytest.mark.parametrize("name", ["box", "q"])
def test_given_noise_makes_sampled_actions(name: str, tmp_path: Path) -> None:
    check(name, True, tmp_path, steps=10)


def test_a_sampled_choice_has_the_probability_of_the_policy(tmp_path: Path) -> None:
    policy = acting("masked")
    session = Session(export_policy(policy, tmp_path / "policy.onnx", explore=True))
    rows = 20_000
    given = {
        "obs": np.zeros((rows, 4), np.float32),
        "action_mask": np.tile([True, False, True, True], (rows, 1)),
        "is_first": np.ones(rows, bool),
        "uniform": np.random.default_rng(0).random((rows, 4), np.float32),
    }
    found = session(given)
    logits = torch.as_tensor(found["logits"][0]).masked_fill(
        ~torch.as_tensor(given["action_mask"][0]), -torch.inf
    )
    shares = np.bincount(found["action"] - 2, minlength=4) / rows
    np.testing.assert_allclose(shares, logits.softmax(0).numpy(), atol=0.02)


def test_torch_export_gives_what_the_policy_gives(tmp_path: Path) -> None:
    policy = acting("lstm")
    file = export_policy(policy, tmp_path / "policy.pt2")
    program: Any = torch.export.load(file).module()
    portable = PortablePolicy(policy, explore=False)
    names = [port.name for port in portable.outputs]
    state = [torch.zeros(ROWS, *port.shape) for port in portable.state]
    for number, batch in enumerate(observations(policy, VECTOR, STEPS)):
        first = np.full(ROWS, number % 7 == 0)
        obs = torch.as_tensor(batch, dtype=torch.float32)
        found = dict(zip(names, program(obs, torch.as_tensor(first), *state), strict=True))
        state = [found[f"next_{port.name}"] for port in portable.state]
        np.testing.assert_array_equal(found["action"], policy.act(batch, is_first=first))


@pytest.mark.parametrize(
    ("name", "ending"), [("gru", ".onnx"), ("mixed", ".pt2"), ("mixed", ".onnx")]
)
def test_the_code_of_the_page_runs(name: str, ending: str, tmp_path: Path) -> None:
    policy = acting(name)
    file = export_policy(policy, tmp_path / f"policy{ending}", explore=name == "mixed")
    text = file.with_suffix(".md").read_text()
    code = text.split("```python\n")[1].split("```")[0].replace(repr(file.name), repr(str(file)))
    names: dict[str, Any] = {}
    exec(code, names)
    for number, batch in enumerate(observations(policy, KINDS[name][1], 5)):
        obs, mask = policy.spaces.take_mask(batch, {})
        first = [number == 0] * ROWS
        masks = () if mask is None else (np.reshape(mask, (ROWS, -1)),)
        action = np.asarray(names["act"](obs, first, *masks))
        if name != "mixed":
            np.testing.assert_array_equal(action, policy.act(batch, is_first=first))
    for port in PortablePolicy(policy, explore=name == "mixed").inputs:
        assert f"| `{port.name}` | {port.dtype} |" in text


def test_a_policy_of_a_users_own_is_exported(tmp_path: Path) -> None:
    policy = own(Tossing)
    session = Session(export_policy(policy, tmp_path / "own.onnx"))
    for batch in observations(policy, VECTOR, STEPS):
        found = session({"obs": batch.astype(np.float32), "is_first": np.zeros(ROWS, bool)})
        np.testing.assert_array_equal(found["action"], policy.act(batch))
    sampled = Session(export_policy(policy, tmp_path / "own.onnx", explore=True))
    assert sampled.inputs["uniform"].shape[1:] == [4]


def test_a_policy_that_cannot_be_traced_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"torch\.export can trace, got .*Branching"):
        export_policy(own(Branching), tmp_path / "own.onnx")
    assert not list(tmp_path.iterdir())


def test_a_random_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="acts at random"):
        export_policy(own(RandomPolicy), tmp_path / "own.onnx")


def test_an_environment_without_an_action_is_refused(tmp_path: Path) -> None:
    nothing = spaces.Box(-1.0, 1.0, (0,))
    with pytest.raises(ConfigError, match="expected a policy that acts, got 'own'"):
        export_policy(own(Tossing, nothing), tmp_path / "own.onnx")


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.onnx or \.pt2 .*'policy\.pkl'"):
        export_policy(acting("discrete"), tmp_path / "policy.pkl")
