"""The web server of `srl watch`: the page, what it shows, and what its buttons do."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import anyio
import msgspec
import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from srl.errors import ConfigError, SrlError
from srl.launch.run.requests import ask
from srl.watch.live import ListFeed, RunFeed, follow
from srl.watch.overlay import MAX_RUNS, overlay
from srl.watch.runs import Runs
from srl.watch.security import Guard, is_loopback, names_of

DEFAULT_PORT = 8700
ANSWER_SECONDS = 10.0
"""How long a run may take to answer a button."""
_MAX_POST_BYTES = 1 << 14
_STATIC = "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_encode = msgspec.json.Encoder().encode


class _Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a button asks of a run."""

    run: str
    action: Literal["scale", "checkpoint", "stop"]
    counts: dict[str, Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]] = {}


class Page:
    """The page over a folder of runs, as a web application and as the server that runs it."""

    def __init__(self, root: Path) -> None:
        self.runs = Runs(root)
        self.token = secrets.token_urlsafe(32)
        self._server: uvicorn.Server | None = None
        self._lock = anyio.Lock()
        self._files = {
            file.name: (file.read_bytes(), _TYPES[Path(file.name).suffix])
            for file in (resources.files(__package__) / _STATIC).iterdir()
            if Path(file.name).suffix in _TYPES
        }

    def application(self, host: str, port: int) -> ASGIApp:
        """The web application that listens at `host`."""
        routes = [
            Route("/", self._index),
            Route("/static/{name}", self._static),
            Route("/api/runs/live", self._live_list),
            Route("/api/run/live", self._live_run),
            Route("/api/overlay", self._overlay),
            Route("/api/log", self._log),
            Route("/api/film", self._film),
            Route("/api/ask", self._ask, methods=["POST"]),
        ]
        page = Starlette(routes=routes)
        page.router.redirect_slashes = False
        # Cookies do not tell ports apart: two servers on a machine need two names.
        return Guard(page, self.token, names_of(host), f"srl_watch_{port}")

    def serve(self, listening: socket.socket) -> None:
        """Serves the page until a signal ends it."""
        host, port = listening.getsockname()[:2]
        config = uvicorn.Config(
            self.application(host, port),
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            # Its own settings would close the log handlers of everybody else in this process.
            log_config=None,
            log_level="error",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._server.run(sockets=[listening])

    def end(self) -> None:
        """Ends `serve`, from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    def _is_over(self) -> bool:
        return self._server is not None and self._server.should_exit

    # -- the page ----------------------------------------------------------------------------------

    async def _index(self, request: Request) -> Response:
        return self._file("index.html")

    async def _static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._files:
            return PlainTextResponse("No such file.", 404)
        content, kind = self._files[name]
        return Response(content, media_type=kind)

    # -- what it shows -----------------------------------------------------------------------------

    async def _live_list(self, request: Request) -> Response:
        return self._events(ListFeed(self.runs).news)

    async def _live_run(self, request: Request) -> Response:
        try:
            run = self.runs.get(request.query_params.get("run", ""))
        except SrlError as error:
            return PlainTextResponse(str(error), 404)
        return self._events(RunFeed(run).news)

    def _events(self, news: Callable[[], list[bytes]]) -> Response:
        events = follow(news, self._is_over, self._lock)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _overlay(self, request: Request) -> Response:
        names = request.query_params.getlist("run")[:MAX_RUNS]

        def make() -> bytes:
            known = self.runs.all()
            return _encode(overlay([known[name] for name in names if name in known]))

        async with self._lock:
            return _json(await to_thread.run_sync(make))

    async def _log(self, request: Request) -> Response:
        asked = request.query_params
        try:
            offset = int(asked.get("offset", "-1"))
            run = self.runs.get(asked.get("run", ""))
            text, begin, end = run.log(asked.get("log", ""), offset)
        except ValueError:
            return PlainTextResponse("offset: expected a number.", 400)
        except SrlError as error:
            return PlainTextResponse(str(error), 404)
        return _json(_encode({"text": text, "begin": begin, "end": end}))

    async def _film(self, request: Request) -> Response:
        asked = request.query_params
        try:
            path, kind = self.runs.get(asked.get("run", "")).film(asked.get("film", ""))
        except SrlError as error:
            return PlainTextResponse(str(error), 404)
        return FileResponse(path, media_type=kind)

    # -- its buttons -------------------------------------------------------------------------------

    async def _ask(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_POST_BYTES:
                return PlainTextResponse("Expected less.", 413)
        try:
            wish = msgspec.json.decode(body, type=_Wish)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return PlainTextResponse(f"Expected a request to a run, got {error}.", 400)
        try:
            path = self.runs.get(wish.run).path
        except SrlError as error:
            return PlainTextResponse(str(error), 404)
        counts = dict(wish.counts)
        try:
            await to_thread.run_sync(lambda: ask(path, wish.action, ANSWER_SECONDS, counts))
        except SrlError as error:
            return PlainTextResponse(str(error), 409)
        return _json(b"{}")


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens at an address. Without a port it is the usual one, or else a free
    one. Raises ConfigError where that cannot be."""
    wanted = [port] if port is not None else [DEFAULT_PORT, 0]
    problem: OSError | None = None
    for number in wanted:
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(
                f"--host: expected an address of this machine, got {host!r} ({error})."
            ) from None
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            problem = error
    raise ConfigError(
        f"srl watch: cannot listen at {host}, port {port or DEFAULT_PORT} ({problem}). Give "
        "another --port, or --host."
    )


def address_of(listening: socket.socket, token: str) -> str:
    """The address of the page, with its token."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    elif ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}/?token={token}"


def is_private(listening: socket.socket) -> bool:
    """Whether only this machine reaches a socket."""
    return is_loopback(listening.getsockname()[0])
