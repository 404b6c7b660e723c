"""Who may see the page and press its buttons: every request passes this guard first.

- Somebody else on the machine or in the network: a random token, in the address once and then in a
  cookie.
- Another site's page that lets the browser ask (CSRF): `Origin`, `Sec-Fetch-Site`, and a cookie for
  the same site only.
- Another site's name that is made to mean this machine (DNS rebinding): `Host` has to be an address
  or a name of this machine.
- Text of a run that is taken for code: a content security policy without inline scripts, and no
  guessed content types.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_READING = ("GET", "HEAD")
_NO_TOKEN = "Open the address that `srl watch` has printed: it has the token that this page needs."


class Guard:
    """Passes on requests with the token, from this page, to a name of this machine."""

    def __init__(self, app: ASGIApp, token: str, names: Iterable[str], cookie: str) -> None:
        """`names` are the host names by which the page may be called, besides addresses."""
        self._app = app
        self._token = token.encode()
        self._names = {name.lower() for name in names}
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or refuses it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        by_address = scope["path"] == "/" and self._is_token(asked)

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    sent[name] = value
                if by_address:
                    sent.append(
                        "set-cookie",
                        f"{self._cookie}={asked}; Path=/; HttpOnly; SameSite=Strict",
                    )
            await send(message)

        refusal = self._refusal(scope, headers, by_address)
        await (refusal or self._app)(scope, receive, reply)

    def _refusal(
        self, scope: Scope, headers: Headers, by_address: bool
    ) -> PlainTextResponse | None:
        """Why a request is refused; None if it is not."""
        if not self._is_ours(headers.get("host", "")):
            return PlainTextResponse("This page does not have that name.", 421)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        cookies = cookie_parser(headers.get("cookie", ""))
        by_header = self._is_token(bearer)
        if not (by_address or by_header or self._is_token(cookies.get(self._cookie, ""))):
            return PlainTextResponse(_NO_TOKEN, 401)
        if scope["method"] in _READING:
            site = headers.get("sec-fetch-site", "none")
            if scope["path"] != "/" and site not in ("same-origin", "none"):
                return PlainTextResponse("Other sites may not read this page.", 403)
            return None
        origin = headers.get("origin")
        here = f"{scope.get('scheme', 'http')}://{headers.get('host')}"
        # Browsers always say where a post comes from; a program shows the token in its header.
        if origin != here and not (origin is None and by_header):
            return PlainTextResponse("Other sites may not post to this page.", 403)
        if headers.get("content-type") != "application/json":
            return PlainTextResponse("Expected JSON.", 415)
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token)

    def _is_ours(self, host: str) -> bool:
        """Whether a `Host` header means this machine. Ports may differ: they may be forwarded."""
        name = host_name(host)
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self._names
        # (An address cannot be bound to another machine, as a name can.)
        return address.is_loopback or "*" in self._names


def host_name(host: str) -> str:
    """The name or the address in a `Host` header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def names_of(host: str) -> set[str]:
    """The names by which a page that listens at `host` may be called. `*` stands for any
    address."""
    names = {"localhost"}
    if not is_loopback(host):
        names |= {"*", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return names


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
