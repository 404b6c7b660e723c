"""The inference stream's contract, over every carrier and between processes."""

from __future__ import annotations

import numpy as np
import pytest
from carriers import Carrier, ShmCarrier, inference_spec, make_carrier, plain
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from srl.data.records import InferenceReply, InferenceRequest
from srl.streams.inference import (
    InferenceClient,
    InferenceServer,
    InferenceSpec,
    create_inference,
    reclaim_client,
    reclaim_server,
)


def open_all(
    spec: InferenceSpec, carrier: Carrier
) -> tuple[list[InferenceClient], list[InferenceServer]]:
    carrier.create(spec)
    clients = [InferenceClient(spec, carrier.open(p), i) for i, p in enumerate(spec.clients)]
    servers = [InferenceServer(spec, carrier.open(p), i) for i, p in enumerate(spec.servers)]
    return clients, servers


def ask(client: InferenceClient, slot: int, numbers: list[int]) -> None:
    """Submits one row for each number."""
    request, count = client.request(slot), len(numbers)
    request.obs["a"][:count] = np.array(numbers, np.float32)[:, None]
    request.obs["b"][:count] = np.array(numbers) % 256
    request.policy_state["h"][:count] = np.array(numbers, np.float32)[:, None]
    request.is_first[:count] = np.array(numbers) % 2 == 0
    request.explore[:count] = 1.0
    client.submit(slot, count)


def answer(server: InferenceServer, slots: list[int], version: int = 1) -> list[int]:
    """Replies to taken slots; returns the numbers that were asked."""
    request, counts = server.gather(slots)
    check_request(request)
    numbers = request.obs["a"][:, 0]
    reply = InferenceReply(
        action=numbers.astype(np.int64) % 5,
        policy_state={"h": request.policy_state["h"] + 1},
        extras={"value": numbers * 2},
        policy_version=version,
    )
    server.answer(slots, counts, reply)
    return [int(n) for n in numbers]


def check_request(request: InferenceRequest) -> None:
    """Every field of a row is of the same row."""
    numbers = request.obs["a"][:, 0]
    assert (request.obs["b"] == numbers % 256).all()
    assert (request.policy_state["h"] == numbers[:, None]).all()
    assert (request.is_first == (numbers % 2 == 0)).all()


def check_reply(client: InferenceClient, slot: int, numbers: list[int], version: int = 1) -> None:
    reply, count = client.take(slot), len(numbers)
    asked = np.array(numbers)
    assert (reply.action[:count] == asked % 5).all()
    assert (reply.extras["value"][:count] == asked * 2).all()
    assert (reply.policy_state["h"][:count] == asked[:, None] + 1).all()
    assert reply.policy_version == version


def test_a_request_comes_back_as_a_reply(carrier: Carrier) -> None:
    (client,), (server,) = open_all(inference_spec(), carrier)
    assert client.poll() == []
    assert server.poll() == []
    ask(client, 1, [4, 7, 9])
    assert server.num_submitted_rows() == 3
    slots = server.poll()
    assert slots == [1]
    assert server.poll() == [], "taken once"
    assert answer(server, slots) == [4, 7, 9]
    assert client.poll() == [1]
    check_reply(client, 1, [4, 7, 9])
    assert client.poll() == []


def test_a_request_keeps_its_content_until_it_is_written_again(carrier: Carrier) -> None:
    (client,), (server,) = open_all(inference_spec(), carrier)
    ask(client, 0, [4, 7])
    answer(server, server.poll(), version=1)
    check_reply(client, 0, [4, 7])
    client.submit(0, 2)
    assert answer(server, server.poll(), version=2) == [4, 7]
    check_reply(client, 0, [4, 7], version=2)


def test_neighbouring_slots_are_gathered_without_a_copy(local: Carrier) -> None:
    (client,), (server,) = open_all(inference_spec(slots_per_client=3), local)

    def gathered(*asked: int) -> InferenceRequest:
        for slot in asked:
            ask(client, slot, [slot, slot + 3, slot + 6])
        slots = server.poll()
        request, _ = server.gather(slots)
        answer(server, slots)
        for slot in asked:
            client.take(slot)
        return request

    both, apart = gathered(1, 2), gathered(0, 2)
    client.request(2).obs["a"].fill(77.0)
    assert (both.obs["a"][3:] == 77.0).all(), "the clients' own memory"
    assert (apart.obs["a"][:, 0] == [0, 3, 6, 2, 5, 8]).all(), "a copy"
    assert gathered(1, 2) is both
    assert gathered(0, 2) is apart


def test_a_slot_has_one_open_request(carrier: Carrier) -> None:
    (client,), _ = open_all(inference_spec(), carrier)
    ask(client, 0, [1])
    with pytest.raises(AssertionError, match="at most one open request"):
        client.submit(0, 1)


@given(data=st.data(), name=st.sampled_from(["inline", "shm", "tcp"]))
@hypothesis_settings(max_examples=40)
def test_every_row_is_answered_once_whoever_asks_and_serves(data: st.DataObject, name: str) -> None:
    """Packed and full slots, alone and together, with any number of ends and any `max_rows`."""
    spec = inference_spec(
        clients=tuple(f"c{i}" for i in range(data.draw(st.integers(1, 3)))),
        servers=tuple(f"s{i}" for i in range(data.draw(st.integers(1, 3)))),
    )
    carrier = make_carrier(name)
    try:
        clients, servers = open_all(spec, carrier)
        asked: dict[tuple[int, int], list[int]] = {}
        open_slots = [(c, slot) for c in range(len(clients)) for slot in range(2)]
        number, seen = 0, []
        for _ in range(data.draw(st.integers(1, 12))):
            for place in data.draw(st.lists(st.sampled_from(open_slots), unique=True)):
                if place not in asked:
                    count = data.draw(st.integers(1, 3))
                    asked[place] = list(range(number, number + count))
                    number += count
                    ask(clients[place[0]], place[1], asked[place])
            server = data.draw(st.sampled_from(servers))
            max_rows = data.draw(st.integers(0, 4))
            waiting = server.num_submitted_rows()
            slots = server.poll(max_rows)
            if slots:
                rows = answer(server, slots)
                seen += rows
                assert not max_rows or len(rows) <= max_rows or len(slots) == 1
            else:
                assert waiting == 0
            for index, client in enumerate(clients):
                for slot in client.poll():
                    check_reply(client, slot, asked.pop((index, slot)))
        assert len(seen) == len(set(seen)) == number - sum(len(rows) for rows in asked.values())
    finally:
        carrier.close()


def test_what_a_dead_server_had_taken_goes_to_the_next(carrier: Carrier) -> None:
    spec = inference_spec(servers=("s0", "s1"))
    (client,), (dies, lives) = open_all(spec, carrier)
    ask(client, 0, [1, 2])
    ask(client, 1, [3])
    assert dies.poll(max_rows=2) == [0]
    assert lives.poll() == [1]
    assert reclaim_server(spec, carrier.open("controller"), 0) == 1
    slots = lives.poll()
    assert slots == [0], "only what the dead one had; its own stays taken"
    assert answer(lives, slots) == [1, 2]
    check_reply(client, 0, [1, 2])


def test_a_server_that_leaves_hands_back_what_it_had_taken(carrier: Carrier) -> None:
    (client,), (leaves, waits_for_return) = open_all(inference_spec(servers=("s0", "s1")), carrier)
    ask(client, 0, [1])
    assert leaves.poll() == [0]
    leaves.close()
    assert answer(waits_for_return, waits_for_return.poll()) == [1]


def test_a_dead_clients_request_is_withdrawn_and_its_reply_reaches_nobody(
    carrier: Carrier,
) -> None:
    spec = inference_spec()
    (client,), (server,) = open_all(spec, carrier)
    ask(client, 0, [1])
    ask(client, 1, [2])
    taken = server.poll(max_rows=1)
    reclaim_client(spec, carrier.agent("c0"), 0)
    if carrier.name != "tcp":
        assert server.poll() == [], "what was not taken yet is withdrawn"
    heir = InferenceClient(spec, carrier.open("c0"), 0)
    ask(heir, 0, [5])
    answer(server, taken)
    assert heir.poll() == [], "the late reply was meant for another"
    assert 5 in answer(server, server.poll())
    assert heir.poll() == [0], "and of the other slot it never asked for anything"
    check_reply(heir, 0, [5])


def test_a_late_server_does_not_touch_what_another_has_answered(shm: ShmCarrier) -> None:
    spec = inference_spec(servers=("s0", "s1"))
    (client,), (late, other) = open_all(spec, shm)
    ask(client, 0, [1])
    taken = late.poll()
    request, counts = late.gather(taken)
    reply = InferenceReply(
        action=np.array([3]),
        policy_state={"h": request.policy_state["h"] + 9},
        extras={"value": np.array([7.0])},
        policy_version=1,
    )
    reclaim_client(spec, shm.agent("c0"), 0)
    heir = InferenceClient(spec, shm.open("c0"), 0)
    ask(heir, 0, [5])
    assert answer(other, other.poll(), version=2) == [5]
    late.answer(taken, counts, reply)
    assert heir.poll() == [0]
    check_reply(heir, 0, [5], version=2)


def test_a_server_is_done_when_all_its_clients_have_left(carrier: Carrier) -> None:
    spec = inference_spec(clients=("c0", "c1"))
    carrier.create(spec)
    server = InferenceServer(spec, carrier.open("s0"), 0)
    assert not server.closed, "nobody has come yet"
    clients = [InferenceClient(spec, carrier.open(f"c{i}"), i) for i in range(2)]
    assert not server.closed
    clients[0].close()
    assert not server.closed
    clients[1].close()
    assert server.closed


def test_both_ends_wake_each_other(shm: ShmCarrier) -> None:
    (client,), (server,) = open_all(inference_spec(), shm)
    client_wake_pipe, server_wake_pipe = shm.wake_pipe("c0"), shm.wake_pipe("s0")
    ask(client, 0, [1])
    assert server_wake_pipe.wait(1)
    answer(server, server.poll())
    assert client_wake_pipe.wait(1)
    client.close()
    assert server_wake_pipe.wait(1)
    for wake_pipe in (client_wake_pipe, server_wake_pipe):
        wake_pipe.close()


def test_a_request_wakes_one_server_that_waits_its_own_before_others(shm: ShmCarrier) -> None:
    spec = inference_spec(clients=("c0", "c1"), servers=("s0", "s1"))
    clients, servers = open_all(spec, shm)
    wake_pipes = [shm.wake_pipe(name) for name in spec.servers]

    def woken() -> list[bool]:
        return [wake_pipe.wait(0) for wake_pipe in wake_pipes]

    def serve(server: InferenceServer) -> None:
        while slots := server.poll():
            answer(server, slots)

    ask(clients[0], 0, [1])
    assert woken() == [True, True], "nobody is known to wait"
    for server in servers:
        serve(server)
    ask(clients[0], 1, [2])
    assert woken() == [True, False]
    serve(servers[0])
    ask(clients[1], 0, [3])
    assert woken() == [False, True]
    serve(servers[1])
    ask(clients[0], 0, [4])
    assert woken() == [True, False]
    taken = servers[0].poll()
    ask(clients[0], 1, [5])
    assert woken() == [False, True], "its own is at work"
    more = servers[1].poll()
    ask(clients[1], 1, [6])
    assert woken() == [True, True], "all are at work; whoever is done first takes it"
    assert answer(servers[1], more) == [5]
    assert answer(servers[1], servers[1].poll()) == [6]
    assert answer(servers[0], taken) == [4]
    for wake_pipe in wake_pipes:
        wake_pipe.close()


def test_a_server_that_does_not_look_is_not_waited_for(shm: ShmCarrier) -> None:
    """It is stopped, or took only as many rows as it may."""
    spec = inference_spec(clients=("c0", "c1", "c2"), servers=("s0", "s1"))
    clients, servers = open_all(spec, shm)
    wake_pipes = [shm.wake_pipe(name) for name in spec.servers]
    for server in servers:
        assert server.poll() == []
    ask(clients[0], 0, [1])
    ask(clients[2], 0, [2])
    assert [wake_pipe.wait(0) for wake_pipe in wake_pipes] == [True, True], (
        "its own was woken, and then the other"
    )
    ask(clients[1], 0, [3])
    assert [wake_pipe.wait(0) for wake_pipe in wake_pipes] == [True, True], (
        "nobody is known to wait"
    )
    for wake_pipe in wake_pipes:
        wake_pipe.close()


def test_a_server_at_work_for_another_stream_is_left_alone(shm: ShmCarrier) -> None:
    spec = inference_spec(servers=("s0", "s1"))
    (client,), servers = open_all(spec, shm)
    wake_pipes = [shm.wake_pipe(name) for name in spec.servers]
    for server in servers:
        assert server.poll() == []
    servers[0].mark_busy()
    ask(client, 0, [1])
    assert [wake_pipe.wait(0) for wake_pipe in wake_pipes] == [False, True]
    assert servers[1].poll() == [0]
    servers[1].close()
    assert servers[0].poll() == [0], "what it had taken"
    assert servers[0].poll() == []
    ask(client, 1, [2])
    assert [wake_pipe.wait(0) for wake_pipe in wake_pipes] == [True, False], "who left is not woken"
    for wake_pipe in wake_pipes:
        wake_pipe.close()


def test_what_a_dead_server_was_woken_for_reaches_another(shm: ShmCarrier) -> None:
    spec = inference_spec(servers=("s0", "s1"))
    (client,), (dies, lives) = open_all(spec, shm)
    wake_pipe = shm.wake_pipe("s1")
    for server in (dies, lives):
        assert server.poll() == []
    ask(client, 0, [1])
    assert not wake_pipe.wait(0), "woken was the one that dies before it looks"
    assert reclaim_server(spec, shm.agent("s0"), 0) == 0
    assert wake_pipe.wait(0)
    assert answer(lives, lives.poll()) == [1]
    lives.poll()
    ask(client, 1, [2])
    assert wake_pipe.wait(0), "the dead one does not wait any more"
    wake_pipe.close()


def test_fresh_memory_holds_what_nobody_would_write(carrier: Carrier) -> None:
    (client,), _ = open_all(inference_spec(), carrier)
    assert np.isnan(client.request(0).obs["a"]).all()
    assert (client._replies[0].action == np.iinfo(np.int64).min).all()


# -- real processes ------------------------------------------------------------------------------


def test_two_server_processes_share_the_work_of_two_clients(shm: ShmCarrier) -> None:
    spec = inference_spec(clients=("c0", "c1"), servers=("s0", "s1"))
    create_inference(spec, shm.open("controller"))
    # Both clients are in this process, which waits with one wake-up pipe for both.
    arena, wake_pipe = shm.open("c0"), shm.wake_pipe("c0")
    spec_here = inference_spec(clients=("c0", "c0"), servers=("s0", "s1"))
    clients = [InferenceClient(spec_here, arena, i) for i in range(2)]
    servers = [shm.puppet(name) for name in spec.servers]
    for index, puppet in enumerate(servers):
        puppet("open_server", spec=plain(spec_here), server=index)
        puppet.start("serve")
    left = {(c, slot): 60 for c in range(2) for slot in range(2)}
    for c, slot in left:
        ask(clients[c], slot, [c, slot])
    rows = 0
    while left:
        assert wake_pipe.wait(120), "never woken"
        for c, client in enumerate(clients):
            for slot in client.poll():
                reply = client.take(slot)
                asked = client.request(slot).obs["a"][:2, 0]
                assert (reply.extras["value"][:2] == asked).all()
                assert (reply.action[:2] == asked.astype(np.int64) % 5).all()
                rows += 2
                left[c, slot] -= 1
                if left[c, slot]:
                    number = left[c, slot]
                    ask(client, slot, [1000 * c + number, 500 * slot + number])
                else:
                    del left[c, slot]
    for client in clients:
        client.close()
    served = [puppet.result() for puppet in servers]
    assert sum(served) == rows == 4 * 60 * 2
    wake_pipe.close()


def test_a_killed_servers_requests_are_answered_by_another(shm: ShmCarrier) -> None:
    spec = inference_spec(servers=("s0", "s1"))
    arena, wake_pipe = shm.open("c0"), shm.wake_pipe("c0")
    create_inference(spec, arena)
    client = InferenceClient(spec, arena, 0)
    dies, lives = shm.puppet("s0"), shm.puppet("s1")
    for index, puppet in enumerate((dies, lives)):
        puppet("open_server", spec=plain(spec), server=index)
    ask(client, 0, [4])
    assert dies("poll") == [0]
    dies.kill()
    lives.start("serve")
    assert reclaim_server(spec, arena, 0) == 1
    assert wake_pipe.wait(120)
    assert client.poll() == [0]
    assert client.take(0).action[0] == 4
    client.close()
    assert lives.result() == 1
    wake_pipe.close()
