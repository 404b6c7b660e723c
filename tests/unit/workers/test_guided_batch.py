"""In a guided episode the guide's actions are taken, in the others those of the policy itself."""

from __future__ import annotations

import numpy as np
import pytest

from srl.arena.arena import HeapArena
from srl.data.codec import dump_state, parse_state
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.graph import Graph, Guide, StreamNode, WorkerGroup
from srl.streams.inference import (
    InferenceClient,
    InferenceServer,
    InferenceSpec,
    create_inference,
)
from srl.workers.guided_batch import GuidedAgentBatch

ROWS = 200
OWN, GUIDES = 3, 7


class Bench:
    """One agent batch whose two policies a test plays."""

    def __init__(self, share: float, packs: bool = False) -> None:
        arena = HeapArena()
        self.agent = AgentSpec(obs=ArraySpec(shape=(1,)), action=Discrete(9))
        self.servers = {}
        clients = {}
        for name in ("own", "guide"):
            spec = InferenceSpec(
                name=name, agent=self.agent, rows=ROWS, slots_per_client=1,
                clients=("actor",), servers=("policy",),
            )  # fmt: skip
            create_inference(spec, arena)
            self.servers[name] = InferenceServer(spec, arena, 0)
            clients[name] = InferenceClient(spec, arena, 0)
        self.batch = GuidedAgentBatch(
            guide=clients["guide"],
            config=Guide(policy="guide", share=share),
            seed=1,
            index=0,
            policy="own",
            agent=self.agent,
            rows=ROWS,
            num_agents=1,
            client=clients["own"],
            sink=None,
            parameters=None,
            explore=np.ones(ROWS, np.float32),
            packs=packs,
        )
        self.tick = 0

    def observe(self, is_first: np.ndarray, turn: np.ndarray | None = None) -> None:
        self.tick += 1
        none = np.zeros(ROWS, bool)
        turn = ~none if turn is None else turn
        obs = np.full((ROWS, 1), self.tick, np.float32) + np.arange(ROWS)[:, None] / 1000
        self.batch.observe(
            EnvStep(obs, np.zeros(ROWS, np.float32), none, none, is_first, ~none, turn)
        )

    def answer(self, name: str, action: int) -> np.ndarray:
        """Answers as one of the policies; returns what it saw."""
        server = self.servers[name]
        slots = server.poll()
        request, counts = server.gather(slots)
        seen = request.obs[: sum(counts), 0].copy()
        explore = 1.0 if name == "own" else 0.0
        assert (request.explore[: seen.size] == explore).all()
        server.answer_with(slots, counts, [np.full(seen.size, action)], 1)
        (self.batch if name == "own" else self.batch.guide).receive()
        return seen


EVERY, NONE = np.ones(ROWS, bool), np.zeros(ROWS, bool)


@pytest.mark.parametrize("order", [("own", "guide"), ("guide", "own")])
def test_who_acts_is_drawn_for_each_episode(order: tuple[str, str]) -> None:
    bench = Bench(share=0.3)
    actions = []
    first = np.arange(ROWS) < ROWS // 2
    for is_first in (EVERY, NONE, first):
        bench.observe(is_first)
        one = bench.answer(order[0], OWN if order[0] == "own" else GUIDES)
        assert bench.batch.phase == "asked", "it waits for both"
        other = bench.answer(order[1], OWN if order[1] == "own" else GUIDES)
        assert bench.batch.phase == "ready"
        np.testing.assert_array_equal(one, other)
        actions.append(bench.batch.action.copy())
    guided = actions[0] == GUIDES
    assert set(actions[0]) == {OWN, GUIDES}
    assert 0.15 < guided.mean() < 0.45
    np.testing.assert_array_equal(actions[1], actions[0])
    np.testing.assert_array_equal(actions[2][~first], actions[0][~first])
    assert (actions[2][first] != actions[0][first]).any()


def test_rows_that_do_not_act_are_left_out_for_both() -> None:
    bench = Bench(share=1.0, packs=True)
    bench.observe(EVERY)
    bench.answer("own", OWN)
    bench.answer("guide", GUIDES)
    turn = np.arange(ROWS) % 2 == 1
    bench.observe(NONE, turn)
    assert bench.answer("guide", 8).size == ROWS // 2
    bench.answer("own", OWN)
    np.testing.assert_array_equal(bench.batch.action, np.where(turn, 8, GUIDES))


def test_it_goes_on_from_a_checkpoint_between_two_replies() -> None:
    bench = Bench(share=0.5)
    bench.observe(EVERY)
    bench.answer("own", OWN)
    kept = parse_state(dump_state(bench.batch.state()))
    guided = bench.batch._guided.copy()
    bench.batch._guided[:] = False
    bench.batch._own_is_here = False
    bench.batch.restore(kept)
    bench.answer("guide", GUIDES)
    np.testing.assert_array_equal(bench.batch.action == GUIDES, guided)


def test_the_guides_share_falls_to_zero() -> None:
    guide = Guide(policy="guide", share=0.8, versions=4)
    assert [guide.share_at(v) for v in (-1, 0, 2, 4, 9)] == pytest.approx([0.8, 0.8, 0.4, 0, 0])


def test_actors_ask_both_and_the_same_workers_answer() -> None:
    kind = "srl.workers.actor:ActorWorker"
    workers = {
        "policy": WorkerGroup(kind=kind, serves=("p",), follows=("p",)),
        "actor": WorkerGroup(kind=kind, requests=("p",), writes=("p",)),
    }
    graph = Graph(workers=workers, streams={"p": StreamNode(policy="p")})
    graph = graph.guide("p", Guide(policy="g", share=0.5, versions=3))
    assert graph.workers["policy"].serves == graph.workers["policy"].follows == ("p", "g")
    assert graph.workers["actor"].requests == ("p", "g")
    guides = graph.workers["actor"].settings["guides"]
    assert guides == {"p": {"policy": "g", "share": 0.5, "versions": 3}}
