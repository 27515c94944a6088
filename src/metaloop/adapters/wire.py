"""What leaves for a provider, and how much of what it sends is read: the one way out for both SDKs.

A request leaves with the headers written here and no others, and only to the host it was made for. So nothing that an
SDK picks up from its surroundings gets out, nor does a key go where it does not belong. Imported when it is needed.
"""

import contextlib
import socket
from collections.abc import Mapping

import httpx2

CONNECT_S = 10.0
"""Seconds for a connection to stand. Reading has no limit of its own: the deadline of the ask ends it."""
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),  # below the time after which routers forget who is silent
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
)
"""Some models think for many minutes before the first byte."""
KEPT = ("content-type", "location", "retry-after", "retry-after-ms")
"""Headers of a response that somebody reads. Not content-encoding: what is packed stays packed, and cannot swell."""


class TooMuch(httpx2.TransportError):
    """The body is longer than may be read."""


class Unreached(Exception):
    """No answer came; the message says why."""


class Astray(httpx2.TransportError):
    """The request is for another host than the key."""


def unsent(error: BaseException) -> bool:
    """Whether nothing can have reached the provider."""
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


class Wire(httpx2.AsyncBaseTransport):
    """One origin (scheme, host, port), the headers for it, and at most `most` bytes of a body. There is no proxy."""

    def __init__(self, base_url: httpx2.URL, headers: Mapping[str, str], most: int) -> None:
        self._origin, self._headers, self._most = _origin(base_url), headers, most
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        # What SSL_CERT_FILE and SSL_CERT_DIR name is trusted. Without TLS there is nothing to load.
        secure = base_url.scheme == "https"
        self._inner = httpx2.AsyncHTTPTransport(verify=secure, limits=limits, socket_options=KEEPALIVE)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _origin(request.url) != self._origin:
            raise Astray("a request for another host than that of the key")
        content = await request.aread()
        bare = httpx2.Request(
            request.method, request.url, headers=self._headers, content=content, extensions=request.extensions
        )
        response = await self._inner.handle_async_request(bare)
        async with contextlib.aclosing(response):
            body = await self._body(response)
        kept = {name: response.headers[name] for name in KEPT if name in response.headers}
        return httpx2.Response(response.status_code, headers=kept, content=body)

    async def _body(self, response: httpx2.Response) -> bytes:
        """All of it. The beginning, of an error that is too long; of anything else that is, nothing."""
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._most:
                if response.is_success:
                    raise TooMuch(f"more than {self._most} bytes")
                return bytes(body[: self._most])
        return bytes(body)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def connect(base_url: str, headers: Mapping[str, str], most: int) -> httpx2.AsyncClient:
    """A client that follows nothing, remembers nothing and reads no surroundings. `base_url` is http or https."""
    return httpx2.AsyncClient(
        transport=Wire(httpx2.URL(base_url), headers, most),
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        follow_redirects=False,
        trust_env=False,
    )


async def get(url: str, headers: Mapping[str, str], most: int) -> httpx2.Response:
    """One answer, whatever its status. Raises Unreached."""
    try:
        async with connect(url, headers, most) as http:
            return await http.get(url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unreached(f"{type(error).__name__}: {error}".rstrip(": ")) from error
