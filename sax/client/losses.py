"""Kinds of lost replicas that a request's retry budget tells apart."""

from __future__ import annotations

from sax.errors import ReplicaLost


class ReplicaSilent(ReplicaLost):
    """The connection to a replica lives, but nobody there sends anything."""


class ReplicaDied(ReplicaLost):
    """The connection to a replica broke while the request waited there for a part of its answer."""

    alone = False  # others were there, and all had had a part of theirs


class ReplicaUnreachable(ReplicaLost):
    """There was no connection: the replica never saw the request."""
