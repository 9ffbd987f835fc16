"""Kinds of lost replicas that a request's retry budget tells apart."""

from __future__ import annotations

from sax.errors import ReplicaLost


class ReplicaSilent(ReplicaLost):
    """The connection to a replica lives, but nobody there sends anything."""


class ReplicaUnreachable(ReplicaLost):
    """There was no connection: the replica never saw the request."""
