"""Making one environment, and saying clearly what is wrong when that fails."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError, EnvError, MissingDependency, SrlError, nearest
from srl.resolve import resolve

Factory = Callable[[int], Any]
"""Makes the environment with this index."""

_EXTRAS = {
    "ale_py": "atari",
    "cv2": "atari",
    "mujoco": "mujoco",
    "Box2D": "box2d",
    "box2d": "box2d",
}
_WRONG_ARGS = r"unexpected keyword|required (keyword-only|positional)|multiple values"
_LEGACY_ATARI = re.compile(r"(NoFrameskip|Deterministic)-v4$")


def is_gymnasium_id(name: str) -> bool:
    """Whether a name looks like Gymnasium's: it ends in a version."""
    return re.search(r"-v\d+$", name) is not None


def find_gymnasium(id: str) -> GymnasiumSpec:
    """The registered spec of an id; unknown ones are answered with the nearest names."""
    module, _, name = id.rpartition(":")
    if name.startswith("ALE/") or _LEGACY_ATARI.search(name):
        _register_atari(id)
    try:
        if module:
            importlib.import_module(module)
        found = gymnasium.envs.registration._find_spec(id)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env {id!r}: no module named {error.name!r}. Is it installed?") from None
    except gymnasium.error.Error:
        raise ConfigError(f"unknown environment {id!r}: {nearest(name, gymnasium_ids())}") from None
    return found


def gymnasium_ids() -> list[str]:
    """Registered ids without those that need JAX or a package that Gymnasium dropped."""
    with contextlib.suppress(MissingDependency):
        _register_atari("ALE")
    return sorted(
        id for id in gymnasium.registry if not id.startswith(("phys2d/", "tabular/", "GymV"))
    )


def envpool_ids() -> list[str]:
    """EnvPool's ids, or none where it is not installed."""
    try:
        import envpool
    except ImportError:
        return []
    return sorted(envpool.list_all_envs())


def pettingzoo_ids() -> list[str]:
    """Modules of PettingZoo's and MPE's environments, or none where they are not installed."""
    names = []
    for package in ("mpe2", "pettingzoo.classic", "pettingzoo.butterfly", "pettingzoo.sisl"):
        try:
            found = importlib.import_module(package)
        except ImportError:
            continue
        prefix = package.removeprefix("pettingzoo.")
        names += [
            f"{prefix}.{module.name}"
            for module in pkgutil.iter_modules(found.__path__)
            if re.search(r"_v\d+$", module.name)
        ]
    return sorted(names)


def _register_atari(id: str) -> None:
    try:
        import ale_py
    except ImportError:
        raise MissingDependency(f"environment {id!r}", "atari") from None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)


def make_gymnasium(config: EnvConfig, spec: GymnasiumSpec, render: bool) -> Any:
    """One environment of a registered id."""
    args = dict(config.args)
    if render:
        args["render_mode"] = "rgb_array"
    if str(spec.entry_point).startswith("ale_py"):
        from srl.envs.atari import make_atari

        return _call(lambda: make_atari(config.id, **args), config)
    if config.max_episode_steps:
        args["max_episode_steps"] = config.max_episode_steps
    return _call(lambda: gymnasium.make(config.id, disable_env_checker=True, **args), config)


def make_vector(config: EnvConfig, spec: GymnasiumSpec, num_envs: int, render: bool) -> Any:
    """A native vector environment of a registered id."""
    args = dict(config.args)
    if render:
        args["render_mode"] = "rgb_array"
    if config.max_episode_steps:
        args["max_episode_steps"] = config.max_episode_steps
    if not str(spec.vector_entry_point).startswith("ale_py"):
        return _make_vec(config, num_envs, args)
    from srl.envs.atari import AtariVectorFrames

    stack, frames = int(args.pop("stack", 4)), "stack_num" not in args
    # One frame at a time and raw rewards, as everywhere else.
    args = {"stack_num": 1, "reward_clipping": False, "use_fire_reset": False, **args}
    made = _make_vec(config, num_envs, args)
    return AtariVectorFrames(made, stack) if frames else made


def _make_vec(config: EnvConfig, num_envs: int, args: dict[str, Any]) -> Any:
    return _call(
        lambda: gymnasium.make_vec(
            config.id, num_envs=num_envs, vectorization_mode="vector_entry_point", **args
        ),
        config,
    )


def user_factory(config: EnvConfig, render: bool) -> Factory:
    """The class or function that an import path names, called once per environment."""
    thing = resolve(config.id)
    if not callable(thing):
        raise ConfigError(
            f"env {config.id!r}: expected a class or function that makes an environment, got "
            f"{type(thing).__name__}."
        )
    return _UserFactory(thing, config, render)


def pettingzoo_factory(config: EnvConfig, name: str, render: bool) -> Factory:
    """A PettingZoo module's `parallel_env`, or its `env` where it has no parallel form."""
    try:
        import pettingzoo  # noqa: F401
    except ImportError:
        raise MissingDependency(f"environment {config.id!r}", "pettingzoo") from None
    module = _pettingzoo_module(config, name)
    for attribute in ("parallel_env", "env"):
        if hasattr(module, attribute):
            return _UserFactory(getattr(module, attribute), config, render)
    raise ConfigError(
        f"env {config.id!r}: expected a module with parallel_env or env, got neither."
    )


def _pettingzoo_module(config: EnvConfig, name: str) -> Any:
    for path in (name, f"pettingzoo.{name}"):
        try:
            with warnings.catch_warnings():
                # PettingZoo prefers its new registry; the modules stay what its users know.
                warnings.simplefilter("ignore", DeprecationWarning)
                return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name and (path == error.name or path.startswith(error.name + ".")):
                continue
            raise ConfigError(
                f"env {config.id!r}: it needs the package {error.name!r}. "
                f"Install it with: pip install {error.name}"
            ) from error
        except (ImportError, AttributeError):
            # PettingZoo's packages answer an old version with an error of their own.
            continue
    raise ConfigError(f"unknown environment {config.id!r}: {nearest(name, pettingzoo_ids())}")


class _UserFactory:
    """A user's class or function with the arguments from the settings."""

    def __init__(self, thing: Any, config: EnvConfig, render: bool) -> None:
        self.thing = thing
        self.config = config
        self.render = render

    def __call__(self, index: int) -> Any:
        args = dict(self.config.args)
        if self.render and "render_mode" in _parameters(self.thing, or_any=True):
            args["render_mode"] = "rgb_array"
        return _call(lambda: self.thing(**args), self.config, self.thing)


def makes_vector(factory: Factory) -> Callable[[int, bool], Any] | None:
    """A maker of a whole vector environment, if the factory is one: it takes `num_envs`."""
    if not isinstance(factory, _UserFactory):
        return None
    thing, config = factory.thing, factory.config
    is_vector = isinstance(thing, type) and issubclass(thing, gymnasium.vector.VectorEnv)
    if not is_vector and "num_envs" not in _parameters(thing):
        return None

    def make(num_envs: int, render: bool) -> Any:
        if config.max_episode_steps:
            raise ConfigError(
                f"env.max_episode_steps: expected 0 for a vector environment, got "
                f"{config.max_episode_steps}. Limit episodes inside of it."
            )
        return _call(lambda: thing(num_envs=num_envs, **config.args), config, thing)

    return make


def kind_of(env: Any, id: str) -> Literal["gymnasium", "parallel", "aec"]:
    """Which API an environment keeps."""
    if isinstance(env, gymnasium.Env) and not isinstance(env, gymnasium.vector.VectorEnv):
        return "gymnasium"
    try:
        from pettingzoo import AECEnv, ParallelEnv
    except ImportError:
        pass
    else:
        if isinstance(env, ParallelEnv):
            return "parallel"
        if isinstance(env, AECEnv):
            return "aec"
    hint = ""
    if isinstance(env, gymnasium.vector.VectorEnv):
        hint = " Let its function take `num_envs`."
    raise ConfigError(
        f"env {id!r}: expected a gymnasium.Env, a gymnasium VectorEnv, or a PettingZoo ParallelEnv "
        f"or AECEnv, got {type(env).__name__}.{hint}"
    )


def limits_itself(env: Any, steps: int) -> bool:
    """Whether a wrapper truncates after exactly this many steps already."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return bool(env._max_episode_steps == steps)
        env = env.env
    return False


def _parameters(thing: Any, or_any: bool = False) -> dict[str, inspect.Parameter]:
    """What a class or function takes; with `or_any`, `**kwargs` counts as taking `render_mode`."""
    try:
        found = dict(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return {}
    if or_any and any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values()):
        found["render_mode"] = inspect.Parameter("render_mode", inspect.Parameter.KEYWORD_ONLY)
    return found


def _call(make: Callable[[], Any], config: EnvConfig, thing: Any = None) -> Any:
    """Runs a constructor; what goes wrong becomes an error that says what to change."""
    try:
        return make()
    except SrlError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        for package, extra in _EXTRAS.items():
            if package.lower() in str(error).lower():
                raise MissingDependency(f"environment {config.id!r}", extra) from error
        raise ConfigError(f"env {config.id!r}: it needs a package: {error}") from error
    except TypeError as error:
        if re.search(_WRONG_ARGS, str(error)):
            takes = ""
            if thing is not None and _parameters(thing):
                takes = f" It takes: {', '.join(_parameters(thing))}."
            raise ConfigError(
                f"env.args: {config.id!r} does not take them: {error}.{takes}"
            ) from error
        raise _failed(config, error) from error
    except Exception as error:
        raise _failed(config, error) from error


def _failed(config: EnvConfig, error: Exception) -> EnvError:
    return EnvError(
        f"environment {config.id!r} raised {type(error).__name__} while it was made: "
        f"{error or 'no message'}. Check env.args: {config.args}."
    )
