"""Makes one environment, and explains what is wrong if that fails."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from srl.envs.ids import is_removed, pettingzoo_ids
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError, EnvError, SrlError, nearest
from srl.extras import import_extra, require
from srl.resolve import importing, resolve
from srl.tracebacks import USER_ERRORS, described, in_user_code

Factory = Callable[[int], Any]
"""Makes the environment with this index."""

_PACKAGE_OF_WORD = {
    "ale_py": "ale_py",
    "opencv": "cv2",
    "cv2": "cv2",
    "mujoco": "mujoco",
    "box2d": "Box2D",
}
"""Optional packages, by a word that errors contain when the package is missing."""
PETTINGZOO_PACKAGES = ("mpe2", "pettingzoo")
"""Packages with PettingZoo environments."""
PETTINGZOO_PARTS = ("atari", "butterfly", "classic", "mpe", "sisl")
"""Parts of PettingZoo whose ids leave out `pettingzoo.`."""
_WRONG_ARGS = r"unexpected keyword|required (keyword-only|positional)|multiple values"


def make_gymnasium(config: EnvConfig, spec: GymnasiumSpec, render: bool) -> Any:
    """Makes one environment of a registered id."""
    if is_removed(spec):
        newest = max(s.version for s in gymnasium.registry.values() if s.name == spec.name)
        raise ConfigError(
            f"env {config.id!r}: Gymnasium no longer has this version. Use {spec.name}-v{newest}."
        )
    args = dict(config.args)
    if render:
        args["render_mode"] = "rgb_array"
    if str(spec.entry_point).startswith("ale_py"):
        from srl.envs.atari import make_atari

        return _call(lambda: make_atari(spec.id, **args), config)
    if config.max_episode_steps:
        args["max_episode_steps"] = config.max_episode_steps

    def make() -> Any:
        _import_entry_point(spec.entry_point)
        return gymnasium.make(spec, disable_env_checker=True, **args)

    return _call(make, config)


def make_vector(config: EnvConfig, spec: GymnasiumSpec, num_envs: int, render: bool) -> Any:
    """Makes a native vector environment of a registered id."""
    args = dict(config.args)
    if render:
        args["render_mode"] = "rgb_array"
    if config.max_episode_steps:
        args["max_episode_steps"] = config.max_episode_steps
    if not str(spec.vector_entry_point).startswith("ale_py"):
        return _make_vec(config, spec, num_envs, args)
    from srl.envs.atari import AtariVectorFrames

    stack, frames = int(args.pop("stack", 4)), "stack_num" not in args
    # One frame per step and raw rewards, as for all other Atari environments.
    args = {"stack_num": 1, "reward_clipping": False, "use_fire_reset": False, **args}
    made = _make_vec(config, spec, num_envs, args)
    return AtariVectorFrames(made, stack) if frames else made


def _make_vec(config: EnvConfig, spec: GymnasiumSpec, num_envs: int, args: dict[str, Any]) -> Any:
    def make() -> Any:
        _import_entry_point(spec.vector_entry_point)
        return gymnasium.make_vec(
            spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **args
        )

    return _call(make, config)


def _import_entry_point(entry_point: Any) -> None:
    """Imports an entry point's module before Gymnasium does; the module may be the user's."""
    if isinstance(entry_point, str):
        name = entry_point.partition(":")[0]
        with importing(name):
            importlib.import_module(name)


def user_factory(config: EnvConfig, render: bool) -> Factory:
    """A factory that calls the class or function of an import path, once per environment."""
    maker = resolve(config.id)
    if not callable(maker):
        raise ConfigError(
            f"env {config.id!r}: expected a class or function that makes an environment, got "
            f"{type(maker).__name__}."
        )
    return _UserFactory(maker, config, render)


def pettingzoo_factory(config: EnvConfig, name: str, render: bool) -> Factory:
    """A factory that calls a PettingZoo module's `parallel_env`, or its `env` if it has none."""
    import_extra("pettingzoo", f"environment {config.id!r}")
    module = _pettingzoo_module(config, name)
    for attribute in ("parallel_env", "env"):
        if hasattr(module, attribute):
            return _UserFactory(getattr(module, attribute), config, render)
    raise ConfigError(
        f"env {config.id!r}: expected a module with parallel_env or env, got neither."
    )


def _pettingzoo_module(config: EnvConfig, name: str) -> Any:
    first = name.partition(".")[0]
    if first in PETTINGZOO_PACKAGES:
        require(first, f"environment {config.id!r}")
    paths = [f"pettingzoo.{name}"] if first not in PETTINGZOO_PACKAGES else []
    paths += [name] if first not in PETTINGZOO_PARTS else []
    for path in paths:
        try:
            with warnings.catch_warnings(), importing(path):
                # PettingZoo warns and recommends its new registry, but its users know the modules.
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
            # PettingZoo's packages raise their own error for an old version.
            continue
    raise ConfigError(f"unknown environment {config.id!r}: {nearest(name, pettingzoo_ids())}")


class _UserFactory:
    """Calls a user's class or function with the arguments from the settings."""

    def __init__(self, maker: Any, config: EnvConfig, render: bool) -> None:
        self.maker = maker
        self.config = config
        self.render = render

    def __call__(self, index: int) -> Any:
        args = dict(self.config.args)
        if self.render and "render_mode" in _parameters(self.maker, or_any=True):
            args["render_mode"] = "rgb_array"
        return _call(lambda: self.maker(**args), self.config, self.maker)


def vector_factory(factory: Factory) -> Callable[[int, bool], Any] | None:
    """A function that makes a vector environment, if the user's class or function makes one."""
    if not isinstance(factory, _UserFactory):
        return None
    maker, config = factory.maker, factory.config
    is_vector = isinstance(maker, type) and issubclass(maker, gymnasium.vector.VectorEnv)
    if not is_vector and "num_envs" not in _parameters(maker):
        return None

    def make(num_envs: int, render: bool) -> Any:
        if config.max_episode_steps:
            raise ConfigError(
                f"env.max_episode_steps: expected 0 for a vector environment, got "
                f"{config.max_episode_steps}. Limit episodes inside the environment."
            )
        return _call(lambda: maker(num_envs=num_envs, **config.args), config, maker)

    return make


def env_api(env: Any, id: str) -> Literal["gymnasium", "parallel", "aec"]:
    """Which environment API an environment implements."""
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


def has_time_limit(env: Any, steps: int) -> bool:
    """Whether a TimeLimit wrapper already truncates after exactly this many steps."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return bool(env._max_episode_steps == steps)
        env = env.env
    return False


def _parameters(maker: Any, or_any: bool = False) -> dict[str, inspect.Parameter]:
    """Parameters of a class or function; with `or_any`, `**kwargs` counts as `render_mode`."""
    try:
        found = dict(inspect.signature(maker).parameters)
    except (TypeError, ValueError):
        return {}
    if or_any and any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values()):
        found["render_mode"] = inspect.Parameter("render_mode", inspect.Parameter.KEYWORD_ONLY)
    return found


def _call(make: Callable[[], Any], config: EnvConfig, maker: Any = None) -> Any:
    """Calls a constructor; an exception becomes an error that says what to change."""
    try:
        return make()
    except SrlError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        for word, package in _PACKAGE_OF_WORD.items():
            if word in str(error).lower():
                require(package, f"environment {config.id!r}")
        raise ConfigError(f"env {config.id!r}: it needs a package: {described(error)}") from error
    except TypeError as error:
        if re.search(_WRONG_ARGS, str(error)) and not (maker and in_user_code(error)):
            takes = ""
            if maker is not None and _parameters(maker):
                takes = f" It takes: {', '.join(_parameters(maker))}."
            raise ConfigError(
                f"env.args: {config.id!r} does not take them: {error}.{takes}"
            ) from error
        raise making_failed(config, error) from error
    except USER_ERRORS as error:
        raise making_failed(config, error) from error


def making_failed(config: EnvConfig, error: BaseException) -> EnvError:
    """The error that says which environment raised while it was made, and where in its code."""
    name, _, rest = described(error, f"Check env.args: {config.args}.").partition(": ")
    return EnvError(f"environment {config.id!r} raised {name} while it was made: {rest}")


def check_spaces(env: Any, id: str) -> None:
    """Raises if a Gymnasium environment does not declare its observation and action spaces."""
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.Space):
            got = getattr(env, name, None)
            raise EnvError(
                f"env {id!r}: expected {name} to be a gymnasium.spaces.Space, got "
                f"{'none' if got is None else type(got).__name__}. Set self.{name} in __init__."
            )
