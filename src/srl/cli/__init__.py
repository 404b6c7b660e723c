"""The `srl` command: one small file for each family of verbs.

A heavy module is imported only when a verb needs it, so that `srl --help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from srl.cli import (
    ask,
    bench,
    compare,
    export,
    plan,
    play,
    show,
    status,
    sweep,
    train,
    tune,
    watch,
    worker,
)
from srl.errors import ConfigError, MissingDependency, SrlError
from srl.launch.process.descendants import (
    SharedFiles,
    adopt_orphans,
    descendants,
    end_own_descendants,
)
from srl.launch.run.signals import Interrupted, ignored, interrupt_command

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_EXAMPLES = """
examples:
  srl train cartpole                      train a recipe until it is solved
  srl train LunarLander-v3 --steps 2M     train any Gymnasium environment
  srl train my_env.py:MyEnv --seconds 60  train an environment of your own
  srl eval runs/cartpole-... --episodes 50
  srl play runs/cartpole-... --video cartpole.mp4

`srl VERB --help` has more, and examples for each.
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="srl",
        description="Reinforcement learning as a dataflow.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for family in (
        train,
        play,
        show,
        plan,
        status,
        watch,
        ask,
        worker,
        bench,
        tune,
        compare,
        sweep,
        export,
    ):
        family.add_verbs(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Without `arguments` it runs the command of this
    process; then it also ends all processes that the command started and left behind."""
    if arguments is not None:
        return _run(arguments)
    before = descendants(os.getpid())
    adopt_orphans()
    files = SharedFiles()
    interrupt_command()
    try:
        return _run(arguments)
    finally:
        with ignored():
            end_own_descendants(files, before)


def _run(arguments: Sequence[str] | None) -> int:
    """Runs one command; an error that users can act on becomes one message."""
    begun = time.monotonic()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background commands in this way. A SIGINT that is sent still has to end it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        args = make_parser().parse_args(arguments)
        args.begun = begun
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except (ConfigError, MissingDependency) as error:
        print(f"srl: {error}", file=sys.stderr)
        return EXIT_USAGE
    except SrlError as error:
        print(f"srl: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("srl: interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Interrupted as interrupted:
        number = signal.Signals[str(interrupted)]
        print(f"srl: ended by {number.name}.", file=sys.stderr)
        return 128 + number
    except BrokenPipeError:
        # The reader of our output has ended (`srl list | head`): no message can reach it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
