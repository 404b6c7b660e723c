"""Keys of a run: CURVE key pairs, in files that only their owner may read.

Each run has one pair for its head, and one pair with which hosts join the run. Both are made anew
whenever the run is started, resumed or queued again. The head's pair stays in the head's memory.
Any process that has the join key's file may take part in the run until the run ends. Without it no
process can even finish a handshake.
"""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from srl.errors import NetError
from srl.files import write_atomically

FOLDER = "keys"
JOIN_FILE = "join.key"


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A CURVE key pair, each key as 40 printable characters (Z85)."""

    public: str
    secret: str

    def __post_init__(self) -> None:
        _check(self.public, "public")
        _check(self.secret, "secret")

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


class JoinKey(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that a host needs to join a run: the head's public key, and the join pair."""

    head: str
    """The head's public key."""
    public: str
    secret: str

    def __post_init__(self) -> None:
        for name in ("head", "public", "secret"):
            _check(getattr(self, name), name)

    def __repr__(self) -> str:
        return f"JoinKey(head={self.head!r}, public={self.public!r})"

    @property
    def pair(self) -> KeyPair:
        """The key pair of the host that joins."""
        return KeyPair(public=self.public, secret=self.secret)


class RunKeys(msgspec.Struct, frozen=True, kw_only=True):
    """All keys of one run, as the head holds them."""

    head: KeyPair
    join: KeyPair


def new_pair() -> KeyPair:
    """Makes a new key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public.decode(), secret=secret.decode())


def make_run_keys(run_dir: Path) -> RunKeys:
    """Makes the keys of a run that starts, and writes the join key's file in `RUN/keys`.

    Keys of an earlier start of the same run are no longer valid.
    """
    folder = run_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    head, join_pair = new_pair(), new_pair()
    join = JoinKey(head=head.public, public=join_pair.public, secret=join_pair.secret)
    write_atomically(folder / JOIN_FILE, msgspec.json.encode(join), private=True)
    return RunKeys(head=head, join=join_pair)


def join_key_path(run_dir: Path) -> Path:
    """Path of the file that a host needs to join the run."""
    return run_dir / FOLDER / JOIN_FILE


def load_join_key(path: Path) -> JoinKey:
    """Reads a join key's file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        data = path.read_bytes()
    except OSError as error:
        raise NetError(
            f"{path}: expected a key file, got none ({error.strerror}). Copy {FOLDER}/{JOIN_FILE} "
            "from the run's directory on the host where it was started."
        ) from None
    if mode & 0o077:
        raise NetError(
            f"{path}: expected a file that only its owner may read, got mode {mode:o}. "
            f"Others on this machine could join the run: chmod 600 {path}"
        )
    try:
        return msgspec.json.decode(data, type=JoinKey)
    except (msgspec.DecodeError, NetError, UnicodeDecodeError) as error:
        raise NetError(
            f"{path}: expected a key file, got something else ({error}). Copy it again from the "
            "run's directory."
        ) from None


def _check(key: str, name: str) -> None:
    try:
        if len(z85.decode(key)) == 32:
            return
    except (ValueError, KeyError, TypeError, IndexError):
        pass
    raise NetError(
        f"{name}: expected a key of 40 characters (Z85), got other text ({len(key)} characters)."
    )
