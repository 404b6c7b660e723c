import os
from pathlib import Path

from srl.services.names import Entry, Names


def test_a_registered_worker_is_found_by_name(tmp_path: Path) -> None:
    names = Names(tmp_path)
    names.register(Entry(worker="actor/0", process="actor-0"))
    names.register(Entry(worker="policy/0", process="actor-0", incarnation=2))
    found = Names(tmp_path).lookup("actor/0")
    assert found is not None
    assert found.pid == os.getpid()
    assert list(names.all()) == ["actor/0", "policy/0"]
    assert names.all()["policy/0"].incarnation == 2


def test_the_newest_entry_counts_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    names = Names(tmp_path)
    names.register(Entry(worker="actor/0", process="actor-0", pid=1))
    names.register(Entry(worker="actor/0", process="actor-0", pid=2))
    assert names.all()["actor/0"].pid == 2
    names.remove("actor/0")
    names.remove("actor/0")
    assert names.lookup("actor/0") is None
    assert os.listdir(tmp_path) == []
