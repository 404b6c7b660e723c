"""`srl watch`: shows runs in a browser, while they go on and afterwards."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from srl.cli.options import Verbs, add_verb

_EXAMPLES = """
srl watch
srl watch runs/cartpole
srl watch runs --port 9000
srl watch runs --host 0.0.0.0     (others may open it, with the token)
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl watch`."""
    parser = add_verb(
        verbs, "watch", "show runs in a browser, while they go on and afterwards", _EXAMPLES
    )
    parser.add_argument(
        "folder",
        nargs="?",
        default="runs",
        metavar="RUN_OR_FOLDER",
        help="a run's folder, or a folder with runs in it (default: runs)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen at; by default only this machine reaches the page. It is not "
        "encrypted: over a network use `ssh -L`",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="the port to listen at (default: 8700, or a free one)",
    )
    parser.set_defaults(run=_watch)


def _watch(args: argparse.Namespace) -> int:
    from srl.errors import ConfigError
    from srl.extras import import_extra

    folder = Path(args.folder)
    if not folder.is_dir():
        raise ConfigError(
            f"srl watch: expected a run or a folder of runs, got {str(folder)!r}, which is no "
            "folder. `srl train` makes runs."
        )
    if args.port is not None and not 0 <= args.port <= 65535:
        raise ConfigError(f"--port: expected 0 to 65535, got {args.port}.")
    for package in ("starlette", "uvicorn"):
        import_extra(package, "srl watch")
    from srl.watch.server import Page, address_of, is_private, listen

    listening = listen(args.host, args.port)
    page = Page(folder)
    print(address_of(listening, page.token), flush=True)
    if not is_private(listening):
        print(
            "srl watch: others can reach this address. Whoever has the token sees the runs and may "
            "stop them, and what is sent is not encrypted.",
            file=sys.stderr,
        )
    page.serve(listening)
    return 0
