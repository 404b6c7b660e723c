"""`srl eval`, `srl play` and `srl record`: play episodes with the policies of a run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from srl.cli.options import Verbs, add_env_args, add_trust, add_verb, number
from srl.errors import ConfigError, install_command

_EVAL_EXAMPLES = """
srl eval runs/cartpole --episodes 100
srl eval runs/cartpole --checkpoint best --json
srl eval runs/tag --policy 'chaser=runs/a@best' --policy 'runner=runs/b'
srl eval runs/tictactoe --policy 'player_2=random'
srl eval runs/tag --opponent runs/tag@v20 --side 'adversary_*'
srl eval runs/tag --checkpoint best:chaser
"""

_PLAY_EXAMPLES = """
srl play runs/cartpole --video cartpole.mp4
srl play runs/pong --video pong.gif --checkpoint best --episodes 2
"""

_RECORD_EXAMPLES = """
srl record runs/cartpole --episodes 100
srl record runs/pendulum --episodes 50 --checkpoint best --output datasets/pendulum-expert-v0
srl record runs/tag --episodes 200 --of chaser --explore
srl train CartPole-v1 --algorithm bc --set algorithm.dataset=datasets/cartpole-v0
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl eval`, `srl play` and `srl record`."""
    parser = add_verb(verbs, "eval", "play whole episodes and print the returns", _EVAL_EXAMPLES)
    _add_common(parser, episodes=20)
    add_env_args(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_eval)

    parser = add_verb(verbs, "play", "record a video of episodes", _PLAY_EXAMPLES)
    _add_common(parser, episodes=1)
    add_env_args(parser)
    parser.add_argument(
        "--video",
        metavar="FILE",
        required=True,
        help="an .mp4 or .gif file; a GIF is written where no video encoder is installed",
    )
    parser.add_argument("--fps", type=int, default=30, metavar="N", help="frames per second")
    parser.set_defaults(run=_play)

    text = "record episodes as a dataset in Minari's format"
    parser = add_verb(verbs, "record", text, _RECORD_EXAMPLES)
    _add_common(parser, episodes=None)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="the new folder of the dataset (default: datasets/RUN-v0)",
    )
    parser.add_argument(
        "--of",
        default="",
        metavar="NAME",
        help="the policy whose agents are recorded; needed where the run has several policies",
    )
    parser.set_defaults(run=_record)


def _add_common(parser: argparse.ArgumentParser, episodes: int | None) -> None:
    """`episodes` is the default; None: there is none."""
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--episodes",
        type=number,
        default=episodes,
        required=episodes is None,
        metavar="N",
        help="how many episodes" if episodes is None else f"(default: {episodes})",
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|best:POLICY|NUMBER|vVERSION",
        help="the checkpoint with the weights: the latest, the best (where several policies learn, "
        "each has its own best one), the number of a checkpoint (12, as the folders in "
        "RUN/checkpoints), or a policy version (v340) (default: latest)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME=RUN[@CHECKPOINT[:POLICY]]",
        help="replace policy NAME, or the policy of the agents that match NAME (a pattern like "
        "'seeker_*'), by a policy of another run, or by `random`",
    )
    parser.add_argument(
        "--opponent",
        metavar="RUN[@CHECKPOINT[:POLICY]]",
        help="let this policy (or `random`) play the agents of --side",
    )
    parser.add_argument(
        "--side", metavar="PATTERN", help="the agents that --opponent plays, like 'seeker_*'"
    )
    parser.add_argument(
        "--seed", type=int, default=1_000_000, metavar="N", help="seed of the episodes"
    )
    parser.add_argument(
        "--explore", action="store_true", help="sample actions as training does, not greedily"
    )
    add_trust(parser)


def _replaced(args: argparse.Namespace) -> dict[str, str]:
    """Which source replaces which policy or agents, by `--policy`, `--opponent` and `--side`."""
    found = {}
    if (args.opponent is None) != (args.side is None):
        missing = "--side PATTERN" if args.side is None else "--opponent RUN@CHECKPOINT"
        raise ConfigError(f"--opponent: expected --opponent and --side together; add {missing}.")
    if args.opponent is not None:
        found[args.side] = args.opponent
    for pair in args.policy:
        name, _, source = pair.partition("=")
        if not name or not source:
            raise ConfigError(f"--policy: expected NAME=RUN[@CHECKPOINT[:POLICY]], got {pair!r}.")
        found[name] = source
    return found


class EpisodeProgress:
    """Shows the progress of a command on stderr: on a terminal in one line that is rewritten,
    elsewhere in a new line every 10 seconds."""

    def __init__(self, episodes: int, now: Callable[[], float] = time.monotonic) -> None:
        self._episodes = episodes
        self._now = now
        self._terminal = sys.stderr.isatty()
        self._interval = 0.2 if self._terminal else 10.0
        self._last = now()

    def __call__(self, episodes: int, steps: int) -> None:
        """Shows the progress. Called after every step of the environments."""
        if self._now() - self._last < self._interval:
            return
        self._last = self._now()
        text = f"{episodes} of {self._episodes} episodes, {steps:,} steps"
        # Escape codes: go to the beginning of the line, clear it to its end.
        print(
            f"\r{text}\x1b[K" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self) -> EpisodeProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _eval(args: argparse.Namespace) -> int:
    from srl.overrides import parse_pairs
    from srl.run import load

    with EpisodeProgress(args.episodes) as progress:
        score = load(args.directory).evaluate(
            args.episodes,
            checkpoint=args.checkpoint,
            policies=_replaced(args),
            seed=args.seed,
            explore=args.explore,
            env_args=parse_pairs(args.env_arg, "--env-arg"),
            trust=args.trust,
            on_progress=progress,
        )
    if args.json:
        returns = score.by_name()
        table = {name: {**row, "returns": returns[name]} for name, row in score.table().items()}
        shown = {"run": args.directory, "checkpoint": args.checkpoint, "policies": table}
        print(json.dumps({**shown, "metrics": score.metric_means()}))
    else:
        print(score)
    return 0


def _play(args: argparse.Namespace) -> int:
    from srl.overrides import parse_pairs
    from srl.run import load

    with EpisodeProgress(args.episodes) as progress:
        written = load(args.directory).play(
            args.video,
            episodes=args.episodes,
            checkpoint=args.checkpoint,
            policies=_replaced(args),
            seed=args.seed,
            explore=args.explore,
            env_args=parse_pairs(args.env_arg, "--env-arg"),
            trust=args.trust,
            fps=args.fps,
            on_progress=progress,
        )
    if written.suffix != Path(args.video).suffix:
        print(
            f"No video encoder is installed, so this is a GIF. For MP4: {install_command('video')}"
        )
    print(written)
    return 0


def _record(args: argparse.Namespace) -> int:
    from srl.run import load

    with EpisodeProgress(args.episodes) as progress:
        folder = load(args.directory).record(
            args.output,
            episodes=args.episodes,
            of=args.of,
            checkpoint=args.checkpoint,
            policies=_replaced(args),
            seed=args.seed,
            explore=args.explore,
            trust=args.trust,
            on_progress=progress,
        )
    print(folder)
    return 0
