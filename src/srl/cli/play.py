"""`srl eval` and `srl play`: finished policies at play."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from srl.cli.options import Verbs, add_verb, number
from srl.errors import ConfigError

_EVAL_EXAMPLES = """
srl eval runs/cartpole --episodes 100
srl eval runs/cartpole --checkpoint best --json
srl eval runs/tag --policy 'chaser=runs/a@best' --policy 'runner=runs/b'
srl eval runs/tictactoe --policy 'player_2=random'
"""

_PLAY_EXAMPLES = """
srl play runs/cartpole --video cartpole.mp4
srl play runs/pong --video pong.gif --checkpoint best --episodes 2
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds both verbs."""
    parser = add_verb(verbs, "eval", "play whole episodes and print the returns", _EVAL_EXAMPLES)
    _add_common(parser, episodes=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_eval)

    parser = add_verb(verbs, "play", "film episodes", _PLAY_EXAMPLES)
    _add_common(parser, episodes=1)
    parser.add_argument(
        "--video",
        metavar="FILE",
        required=True,
        help="an .mp4 or .gif; a GIF is written where no encoder is at hand",
    )
    parser.add_argument("--fps", type=int, default=30, metavar="N", help="pictures per second")
    parser.set_defaults(run=_play)


def _add_common(parser: argparse.ArgumentParser, episodes: int) -> None:
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--episodes", type=number, default=episodes, metavar="N", help=f"(default: {episodes})"
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|VERSION",
        help="which weights (default: latest)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME=RUN[@CHECKPOINT]",
        help="puts a policy of another run, or `random`, in the place of policy or agent NAME",
    )
    parser.add_argument("--seed", type=int, default=1_000_000, metavar="N", help="of the episodes")
    parser.add_argument(
        "--explore", action="store_true", help="sample actions as training does, not greedily"
    )


def _replaced(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, _, source = pair.partition("=")
        if not name or not source:
            raise ConfigError(f"--policy: expected NAME=RUN[@CHECKPOINT], got {pair!r}.")
        found[name] = source
    return found


def _eval(args: argparse.Namespace) -> int:
    from srl.run import load

    score = load(args.directory).evaluate(
        args.episodes,
        checkpoint=args.checkpoint,
        policies=_replaced(args.policy),
        seed=args.seed,
        explore=args.explore,
    )
    if args.json:
        table = {
            name: {**row, "returns": score.returns[name]} for name, row in score.table().items()
        }
        print(json.dumps({"run": args.directory, "checkpoint": args.checkpoint, "policies": table}))
    else:
        print(score)
    return 0


def _play(args: argparse.Namespace) -> int:
    from srl.run import load

    written = load(args.directory).play(
        args.video,
        episodes=args.episodes,
        checkpoint=args.checkpoint,
        policies=_replaced(args.policy),
        seed=args.seed,
        explore=args.explore,
        fps=args.fps,
    )
    if written.suffix != Path(args.video).suffix:
        print("No video encoder is at hand, so this is a GIF (pip install 'srl[video]' for MP4).")
    print(written)
    return 0
