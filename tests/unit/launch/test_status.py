"""The status that a run writes: its workers, and the dataflow between them."""

from __future__ import annotations

from pathlib import Path

import pytest

import srl
from srl.cli import main
from srl.launch.run import status_file
from srl.launch.run.status import RunStatus, read_status


@pytest.fixture(scope="module")
def status(tmp_path_factory: pytest.TempPathFactory) -> RunStatus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status_file, "EVERY_SECONDS", 0.0)
        run = srl.train(
            "CartPole-v1", layout="serial", steps=2048, quiet=True,
            run_dir=tmp_path_factory.mktemp("status") / "run",
            set={"actor.envs": 8, "algorithm.rollout_length": 32},
        )  # fmt: skip
    return read_status(run.path)


def test_a_run_in_one_thread_shows_its_workers_in_one_box(status: RunStatus) -> None:
    (box,) = status.boxes
    assert set(box.groups) == {"actor", "policy", "trainer"}
    assert {worker.group for worker in status.workers} == set(box.groups)
    assert all(worker.process in box.processes for worker in status.workers)
    assert status.scaled == status.capacity
    assert status.layout == "serial"


def test_its_streams_show_how_much_they_carry_and_how_old_it_is(status: RunStatus) -> None:
    flows = {flow.kind: flow for flow in status.flows}
    sample = flows["sample"]
    assert sample.source == sample.target == status.boxes[0].key
    assert sample.unit == "fragments"
    assert sample.rate > 0
    assert sample.slots
    assert sample.fill is not None
    assert 0.0 <= sample.fill <= 1.0
    assert sample.age == 0.0
    assert flows["inference"].unit == "rows"


def test_it_says_why_it_is_slow(status: RunStatus) -> None:
    assert "one thread" in status.bottleneck


def test_a_run_that_has_ended_is_not_asked(status: RunStatus, tmp_path: Path) -> None:
    import msgspec

    old = msgspec.structs.replace(status, written=0.0)
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(old))
    for verb in (["scale", str(tmp_path), "actor=2"], ["stop", str(tmp_path)]):
        assert main(verb) == 1
    assert not (tmp_path / "request.json").exists()
