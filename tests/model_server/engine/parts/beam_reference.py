"""Beam search as praxis does it, on whole arrays of all tokens' log-probabilities: no early end,
and hypotheses that do not exist have scores around -1e9. Only what such a hypothesis would answer,
and what follows an answer's end, is left out of the result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model_server.engine.types import BeamSettings, Hypothesis

NEVER, MASKED = -1e9, -1e20
Logprobs = Callable[[tuple[int, ...]], np.ndarray]  # f64[V] after these tokens


def search(logprobs: Logprobs, beams: BeamSettings, ends: frozenset[int], most: int):
    """The answers, best first, of at most so many tokens each."""
    size, alpha, offers = beams.size, beams.length_penalty, beams.offers
    hypotheses = [()] * size
    scores = np.arange(size) * NEVER  # f64[K]
    over = [False] * size
    answers = [(NEVER, NEVER, ())] * size  # normalised score, sum, tokens
    for step in range(most):
        table = np.stack([logprobs(tokens) for tokens in hypotheses])  # f64[K, V]
        if step < beams.min_tokens:
            table[:, sorted(ends)] = MASKED
        for index, tokens in enumerate(hypotheses):
            end = max(sorted(ends), key=lambda token: table[index, token])
            total = float(scores[index] + table[index, end])
            if not over[index]:
                norm = ((step + 6) / 5) ** alpha
                answers.append((max(total, NEVER) / norm, total, (*tokens, end)))
        answers = sorted(answers, key=lambda answer: -answer[0])[:size]
        likely = np.argsort(-table, axis=1, kind="stable")[:, :offers]
        totals = scores[:, None] + np.take_along_axis(table, likely, axis=1)
        if not beams.early_stopping:
            totals += NEVER * np.isin(likely, sorted(ends))
        chosen = np.argsort(-totals.reshape(-1), kind="stable")[:size]
        scores = totals.reshape(-1)[chosen]
        places = [divmod(int(place), offers) for place in chosen]
        over = [over[parent] or int(likely[parent, nth]) in ends for parent, nth in places]
        hypotheses = [(*hypotheses[parent], int(likely[parent, nth])) for parent, nth in places]
        if beams.early_stopping and all(over):
            break
    return [
        Hypothesis(tokens, total, score) for score, total, tokens in answers if total > NEVER / 10
    ]
