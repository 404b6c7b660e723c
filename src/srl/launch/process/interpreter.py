"""The Python interpreter of a worker process: its imports, random numbers, log and end."""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import random
import sys
from collections.abc import Iterable
from typing import NoReturn

from srl.tracebacks import USER_ERRORS, message_of

log = logging.getLogger("srl")


def preload(modules: Iterable[str]) -> None:
    """Imports modules that this process will need, so that they are there when it needs them.

    What cannot be imported is left to the code that needs it, which tells the user.
    """
    # Imported modules stay. To search them for garbage would take a tenth of the start time, and in
    # a forked process it would copy memory that all processes share.
    gc.disable()
    for module in modules:
        try:
            importlib.import_module(module)
        except USER_ERRORS as error:
            log.warning("%s could not be imported: %s", module, message_of(error))
    gc.freeze()
    gc.enable()


def reseed() -> None:
    """Gives this forked process random numbers of its own, as a process has that was started."""
    random.seed()
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed()
    if "torch" in sys.modules:
        import torch

        torch.seed()


def log_to_stderr() -> None:
    """Makes log messages lines of standard error, where each process has its own file or pipe."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )


def exit_now(code: int) -> NoReturn:
    """Exits at once: a normal end of the interpreter is slow, because it takes torch apart."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
