"""Signatures of runs: they show that this user made a run on this machine.

`RUN/config.sig` holds an HMAC over `config.yaml` and over the locations of the code that it names.
The HMAC is made with a secret key of the user. The key is outside of every run, in a file that only
the user may read. So another user who can write into the run's folder cannot make a signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from srl.errors import ConfigError
from srl.files import read_limited, write_atomically

SIGNATURE_FILE = "config.sig"
KEY_FILE = "run-signing.key"
_KEY_BYTES = 32
_MAX_BYTES = 4096
_PURPOSE = b"srl run signature 1\n"


def key_path() -> Path:
    """The file of the user's key, in `$XDG_STATE_HOME/srl` or `~/.local/state/srl`."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return folder / "srl" / KEY_FILE


def sign(run_dir: Path, config: bytes, code: list[tuple[str, str, str]]) -> None:
    """Signs a configuration that is about to be written, with the locations of the code it names.

    The previous signature stays valid beside the new one: if this process dies before it replaces
    the configuration, the old configuration is still there. If the user can have no key (a home
    folder that cannot be written), the run stays unsigned.
    """
    with suppress(ConfigError, OSError, RuntimeError):
        new = _signature(_user_key(make=True), config, code)
        old = _signatures(run_dir)[:1]
        write_atomically(run_dir / SIGNATURE_FILE, "\n".join([new, *old, ""]).encode())


def unsigned_because(run_dir: Path, config: bytes, code: list[tuple[str, str, str]]) -> str:
    """Why a configuration does not count as this user's; empty if it has a valid signature."""
    found = _signatures(run_dir)
    if not found:
        return "it was not made by this user on this machine"
    try:
        expected = _signature(_user_key(make=False), config, code)
    except FileNotFoundError:
        return "it was not made by this user on this machine"
    except (ConfigError, OSError, RuntimeError) as error:
        return f"the key that shows which runs are yours cannot be used ({error})"
    if any(hmac.compare_digest(expected, one) for one in found):
        return ""
    return (
        "it was made by another user or on another machine, its config.yaml was changed since, or "
        "its code has moved to another location"
    )


def _signature(key: bytes, config: bytes, code: list[tuple[str, str, str]]) -> str:
    locations = json.dumps(sorted(code)).encode()
    message = _PURPOSE + hashlib.sha256(config).digest() + locations
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _signatures(run_dir: Path) -> list[str]:
    try:
        text = read_limited(run_dir / SIGNATURE_FILE, _MAX_BYTES).decode("ascii")
    except (ConfigError, OSError, UnicodeDecodeError):
        return []
    return text.split()


def _user_key(*, make: bool) -> bytes:
    path = key_path()
    if make and not path.exists():
        _make_key(path)
    found = path.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{path}: expected a file of yours that only you may read, got mode "
            f"{stat.S_IMODE(found.st_mode):o} of user {found.st_uid}. Remove it: then a new one is "
            "made"
        )
    key = read_limited(path, _MAX_BYTES)
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"{path}: expected {_KEY_BYTES} bytes, got {len(key)}. Remove it")
    return key


def _make_key(path: Path) -> None:
    """Makes the key's file in one step and only once, also if two runs start at the same time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink()
