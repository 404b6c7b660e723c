"""The parameter service's contract, over every carrier; and weights are never a mixture."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from carriers import Carrier, ShmCarrier

from srl.data.records import Snapshot
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter

SHAPES = {"w": ((3, 4), "float32"), "b": ((), "int64"), "empty": ((0,), "float32")}


def weights_of(number: int) -> dict[str, np.ndarray]:
    return {name: np.full(shape, number, dtype) for name, (shape, dtype) in SHAPES.items()}


def test_a_reader_sees_the_newest_weights(carrier: Carrier) -> None:
    spec = ParameterSpec(policy="p", shapes=SHAPES, readers=("reader",))
    carrier.create(spec)
    reader = ParameterReader(spec, carrier.open("reader"))
    assert reader.version == -1, "nothing is published yet"
    writer = ParameterWriter(spec, carrier.open("writer"))
    for version in (0, 1, 2, 7):
        writer.publish(Snapshot(version, weights_of(10 * version)))
        assert reader.version == version
        snapshot = reader.snapshot()
        assert snapshot.policy_version == version
        for name, array in weights_of(10 * version).items():
            np.testing.assert_array_equal(snapshot.weights[name], array)


def test_a_snapshot_is_a_copy(carrier: Carrier) -> None:
    spec = ParameterSpec(policy="p", shapes=SHAPES, readers=("reader",))
    carrier.create(spec)
    writer = ParameterWriter(spec, carrier.open("writer"))
    mine = weights_of(1)
    writer.publish(Snapshot(0, mine))
    snapshot = ParameterReader(spec, carrier.open("reader")).snapshot()
    mine["w"].fill(9)
    writer.publish(Snapshot(1, weights_of(2)))
    writer.publish(Snapshot(2, weights_of(3)))
    assert (snapshot.weights["w"] == 1).all()


def test_publishing_wakes_those_who_follow(shm: ShmCarrier) -> None:
    spec = ParameterSpec(policy="p", shapes=SHAPES, readers=("a", "b"))
    wake_pipes = [shm.wake_pipe(name) for name in spec.readers]
    writer = ParameterWriter(spec, shm.open("writer"))
    assert not any(wake_pipe.wait(0) for wake_pipe in wake_pipes)
    writer.publish(Snapshot(0, weights_of(0)))
    assert all(wake_pipe.wait(1) for wake_pipe in wake_pipes)
    for wake_pipe in wake_pipes:
        wake_pipe.close()


def test_no_reader_ever_sees_a_mixture_of_two_versions(shm: ShmCarrier, tmp_path: Path) -> None:
    """50 MB of weights, published in a tight loop beside two readers, until both have seen some."""
    spec = ParameterSpec(
        policy="big",
        shapes={"first": ((5_000_000,), "float32"), "second": ((7_500_000,), "float32")},
    )
    plain, done = msgspec.json.encode(spec).decode(), [str(tmp_path / name) for name in "ab"]
    writer, readers = shm.puppet("writer"), [shm.puppet(f"reader{i}") for i in range(2)]
    for puppet in (writer, *readers):
        puppet("hello")
    for reader, path in zip(readers, done, strict=True):
        reader.start("read_until", spec=plain, different=5, done=path)
    writer("publish", spec=plain, versions=50, until=done)
    for reader in readers:
        result = reader.result()
        assert result["mixtures"] == 0
        assert result["seen"] == sorted(result["seen"]), "versions never go back"
