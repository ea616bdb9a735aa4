"""One kept-alive connection to a service: HTTP/1.1 in few lines, as a library takes longer than the service does.

connection = Connection("http://127.0.0.1:8000")
answer = await connection.post("/predict", orjson.dumps(state))
answer.status, answer.json
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple

import orjson


class HttpAnswer(NamedTuple):
    """What came back: `headers` is the whole head in lower case."""

    status: int
    headers: str
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    def header(self, name: str) -> str:
        """The value of a header, "" where it is not there."""
        return self.headers.partition(f"\r\n{name}: ")[2].partition("\r\n")[0]


class Connection:
    """Opened when it is first needed, and again after it broke; one request at a time."""

    def __init__(self, url: str, headers: str = "") -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._headers = int(port), headers  # each ends with its line: "accept-encoding: gzip\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    async def post(self, path: str, body: bytes, length: int | None = None) -> HttpAnswer:
        """The answer to a body of JSON; `OSError` or `asyncio.IncompleteReadError` where the connection breaks.

        `length` is what the request says of its body, where that is to be untrue.
        """
        return await self._answered(self.send(path, body, length))

    async def get(self, path: str) -> HttpAnswer:
        """The same of a request without a body."""
        return await self._answered(self.send(path, b"", method="GET"))

    async def _answered(self, sent: Awaitable[None]) -> HttpAnswer:
        try:
            await sent
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            answer = HttpAnswer(int(head.split(maxsplit=2)[1]), head, b"")
            answer = answer._replace(body=await self._reader.readexactly(int(answer.header("content-length"))))
        except BaseException:  # half an answer may be on its way: nobody may take it for the next one
            self.close()
            raise
        if answer.header("connection") == "close":
            self.close()
        return answer

    async def send(self, path: str, body: bytes, length: int | None = None, method: str = "POST") -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n{self._headers}"
        self._writer.write(f"{head}content-length: {length or len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
