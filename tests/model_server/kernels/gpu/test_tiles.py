"""How a call of the GPU's attention is cut: powers of two, and enough programs."""

from __future__ import annotations

import itertools
from typing import Any

from model_server.kernels.gpu.tiles import AttentionTiles, at_least, covered, spans, tiles_for


def cut(**changes: Any) -> AttentionTiles:
    """Of 8 sequences that decode with the sizes of a Llama."""
    usual = {
        "sequences": 8,
        "kv_heads": 8,
        "rows": 4,
        "key_dim": 128,
        "width": 128,
        "shared": False,
        "itemsize": 2,
        "context": 32768,
    }
    return tiles_for(**(usual | changes))


def test_spans_cover_each_column_once() -> None:
    for size in (1, 7, 16, 17, 64, 80, 96, 100, 128, 192, 575, 576):
        found = list(spans(size))
        starts = [sum(s for _, s in found[:i]) for i in range(len(found))]
        assert [start for start, _ in found] == starts, size
        assert all(span >= 16 and span & (span - 1) == 0 for _, span in found), size
        assert sum(span for _, span in found) == covered(size) < size + 16


def test_the_keys_of_latent_attention_are_two_spans() -> None:
    assert list(spans(576)) == [(0, 512), (512, 64)]


def test_rows_are_padded_for_tensor_cores() -> None:
    assert [at_least(size) for size in (1, 16, 17, 100)] == [16, 16, 32, 128]
    assert cut(rows=4).rows == 16
    assert (cut(rows=4 * 32).rows, cut(rows=4 * 32).row_blocks) == (64, 2)


def test_few_long_sequences_fill_a_gpu_and_many_need_no_sharing() -> None:
    alone = cut(sequences=1)
    assert alone.splits * 8 >= 2 * 132
    assert cut(sequences=64).splits == 1
    assert cut(sequences=1, context=200).splits == 1


def test_wide_heads_take_fewer_rows_and_tokens() -> None:
    for (size, shared), itemsize in itertools.product([(576, True), (256, False)], [2, 4]):
        tiles = cut(rows=128, key_dim=size, width=size, shared=shared, itemsize=itemsize)
        usual, case = cut(rows=128, itemsize=itemsize), (size, shared, itemsize)
        assert tiles.rows * size * itemsize <= 48 * 2**10, case
        assert tiles.tokens * (size if shared else 2 * size) * itemsize <= 48 * 2**10, case
        assert tiles.tokens < usual.tokens, case


def test_more_numbers_to_hold_take_more_warps() -> None:
    assert cut(rows=64).warps == 4
    assert cut(rows=64, key_dim=256, width=256).warps == 8
