"""Spans of time: how many there were, and their sum in seconds."""

from __future__ import annotations


class Spans:
    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
