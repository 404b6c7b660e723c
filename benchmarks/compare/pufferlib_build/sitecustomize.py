"""Lets PufferLib 3.0.0 be built without its C games and without CUDA.

Its build downloads raylib for games that no workload uses. `NO_OCEAN=1` is its own switch to leave
them out, but its setup.py then reads a name that only the games define; and an `nvcc` in the path,
even one without CUDA behind it, makes it build for CUDA. Python imports this file when it starts,
if this folder is in PYTHONPATH, as `venvs.py` sees to during that one build.
"""

import builtins
import shutil

builtins.c_extension_paths = []
_which = shutil.which
shutil.which = lambda command, *args, **kwargs: (
    None if command == "nvcc" else _which(command, *args, **kwargs)
)
