"""HTTP/1.1 as it comes: uvicorn's reader of it, with a bound on heads, and for clients that would rather speak another.

What has no end (a head, the extension of a chunk, trailers) is given up at `MOST_HEAD` bytes. A whole request is
answered whatever comes behind it: nothing more, as of a client that has closed its half, or what is no request. One
that offers an upgrade, as `curl --http2` and Java's own client do, is answered in HTTP/1.1, which a server may always
do (RFC 9110, 7.8); httptools would drop its body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 << 10  # bytes
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _InOnePiece:
    """A transport that sends the head of an answer with its body: each write is a call of the system and a packet."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._parts = transport, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        if data.startswith(b"HTTP/1.1 100 "):  # the client waits for it before it sends its body
            self.flush()

    def flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):
    """One connection."""

    _head = 0  # bytes that were read since the last part of a request was complete
    _progress = _offered = _over = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(_InOnePiece(transport))

    def on_response_complete(self) -> None:
        self.transport.flush()
        super().on_response_complete()

    def eof_received(self) -> bool:
        return self._last()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return None
        self._unset_keepalive_if_required()
        self._progress = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_offer(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            return self._refuse(self._invalid)
        self._head = 0 if self._progress else self._head + len(data)
        if self._head > MOST_HEAD:
            self._refuse(self._too_long)
        return None

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += len(name) + len(value)
        if self._fields > MOST_HEAD:
            self._refuse(self._too_long)
            raise ValueError  # which ends the parser
        super().on_header(name, value)

    def on_message_begin(self) -> None:
        self._fields = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._progress = True
        self._offered = self.parser.should_upgrade()
        if not self._offered:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress = True
        if not self._offered:
            super().on_message_complete()

    def _without_offer(self, rest: bytes) -> None:
        """Read a head again without its offer, then what came behind it."""
        version, method = self.parser.get_http_version().encode(), self.parser.get_method()
        if method == b"CONNECT":  # a tunnel: this is no proxy
            return self._refuse(self._invalid)
        lines = [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        head = b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *lines, b"", b""])
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        return self.data_received(head + rest)

    def _last(self) -> bool:
        """Whether the newest request is whole and not answered; it is, and then the connection ends."""
        self._over = self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)
        if self._over:
            self.cycle.keep_alive = False
        return self._over

    def _refuse(self, answer: Callable[[], None]) -> None:
        if not self.transport.is_closing() and not self._last():
            answer()

    def _invalid(self) -> None:
        self.send_400_response("Invalid HTTP request received.")

    def _too_long(self) -> None:
        self.transport.write(TOO_LONG)
        self.transport.close()
