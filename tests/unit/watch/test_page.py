"""The page through a real server on loopback: what it shows, what it does, and whom it refuses."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from made_runs import make_run, worker, write_status

from srl.cli import main
from srl.errors import ConfigError
from srl.launch.run import requests
from srl.launch.run.requests import REQUEST_FILE, RunAnswer, RunRequest
from srl.watch.runs import WatchedRun
from srl.watch.security import POLICY, is_loopback
from srl.watch.server import Page, address_of, listen

EVIL = "<img src=x onerror=alert(1)>"


class Server:
    """A page that is served, and a browser's way to ask it."""

    def __init__(self, root: Path) -> None:
        self.page = Page(root)
        self.listening = listen("127.0.0.1", 0)
        self.address = address_of(self.listening, self.page.token)
        self.base = self.address.partition("/?")[0]
        self.thread = threading.Thread(target=self.page.serve, args=(self.listening,))
        self.thread.start()

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.base, headers=headers, timeout=60.0, trust_env=False)

    @contextmanager
    def browser(self, **headers: str) -> Iterator[httpx.Client]:
        """A client that has opened the address, so that it has the cookie."""
        with self.client(**headers) as client:
            assert client.get(self.address).status_code == 200
            yield client

    def end(self) -> None:
        self.page.end()
        self.thread.join()
        self.listening.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("watched")
    for seed in range(2):
        make_run(root / "lander" / f"seed{seed}", level=1.0 + seed, seed=seed)
    make_run(root / "live", ended=False)
    (root / "secret.log").write_text("secret")
    (root / "live" / "logs" / "linked.log").symlink_to(root / "secret.log")
    (root / "live" / "linked.png").symlink_to(root / "secret.log")
    (root / "live" / "picture.svg").write_text("<svg onload='alert(1)'/>")
    (root / "live" / "film.gif").write_bytes(b"GIF89a")
    (root / "live" / "logs" / "worker-0.log").write_text(f"{EVIL}\x1b[31m")
    (root / "elsewhere").symlink_to(root / "lander")
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.end()


@contextmanager
def events(client: httpx.Client, url: str) -> Iterator[Iterator[tuple[str, dict]]]:
    """Server-sent events as they come."""
    with client.stream("GET", url) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        def read() -> Iterator[tuple[str, dict]]:
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

        yield read()


# -- what it shows ---------------------------------------------------------------------------------


def test_the_list_has_every_run_with_its_state_and_no_linked_one(server: Server) -> None:
    with server.browser() as client, events(client, "/api/runs/live") as found:
        _, shown = next(found)
    runs = {run["name"]: run for run in shown["runs"]}
    assert set(runs) == {"lander/seed0", "lander/seed1", "live"}
    assert runs["live"]["state"] == "running"
    assert runs["live"]["returns"] == {"default": 7.0}
    assert runs["lander/seed1"]["state"] == "finished"
    assert runs["lander/seed1"]["env_steps"] == 2900


class _Handler(logging.Handler):
    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


def test_log_handlers_of_others_are_left_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    handler = _Handler()
    server = Server(tmp_path)
    try:
        with server.browser() as client:
            assert client.get("/").status_code == 200
        assert not handler.closed
    finally:
        server.end()


def test_seeds_are_drawn_as_mean_and_band(server: Server) -> None:
    with server.browser() as client:
        asked = {"run": ["lander/seed0", "lander/seed1"]}
        panels = client.get("/api/overlay", params=asked).json()
    (curve,) = next(p for p in panels if p["key"] == "episode_return_mean")["curves"]
    assert curve["mean"][-1] == pytest.approx(2900 * 1.5)
    assert curve["high"][-1] - curve["low"][-1] == pytest.approx(2900.0)
    assert {panel["key"] for panel in panels} >= {"env_steps_per_second", "policy_age_mean"}


def test_a_run_shows_its_dataflow_its_bottleneck_and_its_curves_as_they_grow(
    tmp_path: Path,
) -> None:
    from made_runs import add_points

    run = make_run(tmp_path / "run", ended=False, points=5)
    server = Server(run)
    try:
        with server.browser() as client, events(client, "/api/run/live?run=run") as found:
            kinds = {}
            while "points" not in kinds:
                name, content = next(found)
                kinds[name] = content
            shown = kinds["run"]
            assert shown["bottleneck"] == "the actors"
            assert shown["setting"] == "actor.count=2"
            assert shown["logs"] == ["controller.log", "actor-0.log"]
            assert shown["checkpoints"] == [1]
            (arrow,) = shown["drawing"]["arrows"]
            assert (arrow["rate"], arrow["fill"], arrow["age"]) == (3.0, 0.25, 1.0)
            boxes = {row["group"]: row for box in shown["drawing"]["boxes"] for row in box["rows"]}
            assert boxes["actor"]["count"] == 2
            assert boxes["actor"]["rate"] == 20.0
            assert boxes["actor"]["mood"] == "good"
            assert kinds["points"]["columns"]["env_steps"] == [0, 100, 200, 300, 400]

            dead = worker("actor/1", state="to be started", restarts=1)
            write_status(run, workers=(worker("actor/0"), dead))
            add_points(run, 5, 6)
            news: dict = {}
            while not {"run", "points"} <= set(news):
                name, content = next(found)
                news[name] = content
            rows = news["run"]["drawing"]["boxes"][0]["rows"]
            assert rows[0]["mood"] == "bad"
            assert rows[0]["restarts"] == 1
            assert news["points"]["columns"]["env_steps"] == [500]
    finally:
        server.end()


def test_logs_are_text_without_what_steers_a_terminal(server: Server) -> None:
    with server.browser() as client:
        asked = {"run": "live", "log": "worker-0.log", "offset": -1}
        answer = client.get("/api/log", params=asked)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["text"] == f"{EVIL}\\x1b[31m"


def test_films_are_shown_in_parts_and_svg_is_not(server: Server) -> None:
    with server.browser() as client:
        asked = {"run": "live", "film": "film.gif"}
        answer = client.get("/api/film", params=asked, headers={"range": "bytes=0-2"})
        assert answer.status_code == 206
        assert answer.content == b"GIF"
        assert client.get("/api/film", params={**asked, "film": "picture.svg"}).status_code == 404


# -- whom it refuses -------------------------------------------------------------------------------

PATHS = (
    "/", "/static/page.js", "/api/runs/live", "/api/run/live?run=live",
    "/api/overlay?run=live", "/api/log?run=live&log=controller.log",
    "/api/film?run=live&film=film.gif",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "shown", [{}, {"authorization": "Bearer wrong"}, {"cookie": "srl_watch=x"}]
)
def test_nothing_is_shown_without_the_token(
    server: Server, path: str, shown: dict[str, str]
) -> None:
    with server.client(**shown) as client:
        answer = client.get(path)
        assert answer.status_code == 401
        assert "live" not in answer.text
        joined = f"{path}{'&' if '?' in path else '?'}token="
        assert client.get(joined + "wrong").status_code == 401
        if path != "/":
            # The token is taken from an address once, where the page itself is.
            assert client.get(joined + server.page.token).status_code == 401


def test_the_cookie_is_for_this_page_alone(server: Server) -> None:
    with server.client() as client:
        cookie = client.get(server.address).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert server.base.rpartition(":")[2] in cookie.partition("=")[0]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.1.2.3", "127.0.0.1.evil.example", ""]
)
def test_a_name_of_another_site_is_refused(server: Server, host: str) -> None:
    with server.browser() as client:
        assert client.get("/", headers={"host": host}).status_code in (400, 421)


def test_names_of_this_machine_and_forwarded_ports_are_taken(server: Server) -> None:
    with server.browser(authorization=f"Bearer {server.page.token}") as client:
        for host in ("localhost:9000", "127.0.0.1:1", "[::1]:5"):
            assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "https://127.0.0.1"},
    ],
)
def test_posts_of_other_sites_are_refused(
    server: Server, folder: Path, headers: dict[str, str]
) -> None:
    with server.browser() as client:
        kind = {"content-type": "application/json"}
        answer = client.post("/api/ask", content=b"{}", headers={**kind, **headers})
        assert answer.status_code == 403
        form = {"content-type": "text/plain", "origin": server.base}
        assert client.post("/api/ask", content=b"{}", headers=form).status_code == 415
    assert not (folder / "live" / REQUEST_FILE).exists()


def test_other_sites_cannot_read_even_with_the_cookie(server: Server) -> None:
    with server.browser() as client:
        for site in ("cross-site", "same-site"):
            answer = client.get("/api/overlay", headers={"sec-fetch-site": site})
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers


TRAVERSALS = (
    "..",
    "../..",
    "live/../live",
    "/etc",
    "live/logs",
    "lander",
    "elsewhere/seed0",
    "",
    "live\0",
)


@pytest.mark.parametrize("name", TRAVERSALS)
def test_names_that_are_no_runs_lead_nowhere(server: Server, name: str) -> None:
    with server.browser() as client:
        for path, more in (
            ("run/live", {}),
            ("log", {"log": "controller.log"}),
            ("film", {"film": "film.gif"}),
        ):
            assert client.get(f"/api/{path}", params={"run": name, **more}).status_code == 404
        assert client.get("/api/overlay", params={"run": name}).json() == []


@pytest.mark.parametrize(
    "name", ["../config.yaml", "../../secret.log", "linked.log", "/etc/passwd", "..", ""]
)
def test_names_that_are_no_logs_lead_nowhere(server: Server, name: str) -> None:
    with server.browser() as client:
        answer = client.get("/api/log", params={"run": "live", "log": name})
        assert answer.status_code == 404
        assert "secret" not in answer.text.replace("../../secret.log", "")
        assert client.get("/api/film", params={"run": "live", "film": name}).status_code == 404
        assert client.get(f"/static/..%2f{name}").status_code == 404


def test_links_of_a_run_are_not_followed(server: Server, tmp_path: Path) -> None:
    run = make_run(tmp_path / "odd")
    (run / "logs").rename(tmp_path / "logs")
    (run / "logs").symlink_to(tmp_path / "logs")
    assert WatchedRun("odd", run).logs() == []
    with server.browser() as client:
        asked = {"run": "live", "film": "linked.png"}
        assert client.get("/api/film", params=asked).status_code == 404


def test_every_answer_forbids_scripts_that_are_not_the_pages(server: Server) -> None:
    with server.browser() as client:
        for path in ("/", "/static/page.js", "/api/log", "/nothing"):
            headers = client.get(path).headers
            assert headers["content-security-policy"] == POLICY
            assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    static = Path(__file__).parents[3] / "src" / "srl" / "watch" / "static"
    assert "<script>" not in (static / "index.html").read_text()
    for file in static.glob("*.js"):
        if not file.name.startswith("uPlot"):
            assert not {"innerHTML", "insertAdjacentHTML", "eval("} & set(
                file.read_text().split(".")
            )


def test_damaged_and_odd_files_of_a_run_are_shown_as_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "odd", ended=False)
    os.unlink(run / "status.json")
    os.mkfifo(run / "status.json")
    (run / "metrics.jsonl").write_bytes(b'{"env_steps": 1e400}\n' + b"[" * 50_000 + b"\n\xff\n")
    (run / "summary.json").write_bytes(b"\x80\x04pickle")
    server = Server(tmp_path)
    try:
        with server.browser() as client, events(client, "/api/run/live?run=odd") as found:
            name, shown = next(found)
        assert name == "run"
        assert shown["env_steps"] == 0
    finally:
        server.end()


# -- its buttons -----------------------------------------------------------------------------------


def answering(folder: Path, refusal: str, asked: list[RunRequest]) -> threading.Thread:
    """Answers the next request to a run, as its head would."""

    def answer() -> None:
        path = folder / REQUEST_FILE
        while not path.exists():
            threading.Event().wait(0.01)
        asked.append(msgspec.json.decode(path.read_bytes(), type=RunRequest))
        path.unlink()
        said = RunAnswer(token=asked[-1].token, refusal=refusal)
        (folder / requests.ANSWER_FILE).write_bytes(msgspec.json.encode(said))

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@pytest.mark.parametrize("refusal", ["", "scale: expected less."])
def test_a_button_asks_the_run_and_shows_what_it_answers(
    server: Server, folder: Path, refusal: str
) -> None:
    asked: list[RunRequest] = []
    head = answering(folder / "live", refusal, asked)
    wish = {"run": "live", "action": "scale", "counts": {"actor": 3}}
    with server.browser() as client:
        answer = client.post("/api/ask", json=wish, headers={"origin": server.base})
    head.join()
    assert (asked[0].action, asked[0].counts) == ("scale", {"actor": 3})
    assert answer.status_code == (409 if refusal else 200)
    assert refusal in answer.text


@pytest.mark.parametrize(
    "wish",
    [
        {"run": "live", "action": "shell"},
        {"run": "live", "action": "scale", "counts": {"actor": -1}},
        {"run": "live", "action": "stop", "path": "/"},
        [],
    ],
)
def test_a_wish_that_is_none_is_refused(server: Server, folder: Path, wish: object) -> None:
    with server.browser() as client:
        headers = {"origin": server.base}
        assert client.post("/api/ask", json=wish, headers=headers).status_code == 400
        gone = {"run": "../live", "action": "stop"}
        assert client.post("/api/ask", json=gone, headers=headers).status_code == 404
        huge = {"run": "x" * 100_000, "action": "stop"}
        assert client.post("/api/ask", json=huge, headers=headers).status_code == 413
    assert not (folder / "live" / REQUEST_FILE).exists()


# -- where it listens ------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named_and_the_usual_one_is_not_insisted_on() -> None:
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1, port {port}"):
        listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="an address of this machine, got 'no such host'"):
        listen("no such host", None)
    with listen("127.0.0.1", None) as one, listen("127.0.0.1", None) as two:
        assert one.getsockname()[1] != two.getsockname()[1]
    first.close()
    assert not is_loopback("0.0.0.0")
    assert is_loopback(socket.gethostbyname("localhost"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no such folder"], "expected a run or a folder of runs, got 'no such folder'"),
        ([".", "--port", "70000"], "--port: expected 0 to 65535, got 70000"),
        ([".", "--host", "no such host"], "--host: expected an address of this machine"),
    ],
)
def test_what_cannot_be_shown_is_refused_at_once(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *arguments]) == 2
    assert said in capsys.readouterr().err
