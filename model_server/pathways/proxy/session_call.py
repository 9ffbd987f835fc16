"""A client's stream of requests and answers.

Messages stay bytes here: the front parses requests once and passes answers on as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import grpc

from model_server.pathways.http2.call import GrpcCall
from model_server.pathways.protocol import messages
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.greeting import introduced, metadata
from sax.errors import SaxError, meaning
from sax.format import human_bytes

logger = logging.getLogger(__name__)

SESSION_KEY = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
_MOST_WAITING = 1024  # requests that are read and not taken by the front


class SessionCall:
    """Serves one client until it goes."""

    def __init__(self, front: Front, call: GrpcCall) -> None:
        """Raises InvalidRequest."""
        who = introduced(metadata(call, SESSION_KEY, messages.GrpcIfrtSessionMetadata))
        self._front = front
        self._call = call
        self._session = front.open(name=who.name or call.peer, weight=who.weight)
        self._requests: deque[bytes] = deque()
        self._some = asyncio.Event()
        self._complete = False
        self._tasks = [asyncio.ensure_future(each()) for each in (self._serve, self._answer)]
        logger.info("session of %s begins", self._session.name)

    def received(self, message: bytes) -> None:
        self._requests.append(message)
        self._some.set()
        if len(self._requests) > _MOST_WAITING:
            self._call.pause()

    def complete(self) -> None:
        self._complete = True
        self._some.set()

    def gone(self) -> None:
        self._front.close(self._session)
        for task in self._tasks:
            task.cancel()
        told = "session of %s ends after %d requests and %s of host buffers"
        session = self._session
        logger.info(told, session.name, session.requests, human_bytes(session.buffers.stored))

    async def _serve(self) -> None:
        try:
            while self._requests or not self._complete:
                await self._some.wait()
                self._some.clear()
                while self._requests:
                    await self._call.room()  # a client that reads no answers gets no more
                    await self._front.serve(self._session, self._requests.popleft())
                self._call.resume()
        except SaxError as error:
            self._call.end(grpc.StatusCode[meaning(error).grpc].value[0], error.text)
        else:
            self._call.end()

    async def _answer(self) -> None:
        while True:
            for response in await self._session.answers():
                self._call.send(response)
            await self._call.room()
