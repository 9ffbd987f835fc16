"""Converts between wire messages and the values of `sax.types`.

Every `encode_x` has a `decode_x` that restores the value. Values are not validated: only what a
message cannot hold is refused.
"""

from __future__ import annotations

from sax.wire.chips import decode_chip, decode_topology, encode_chip, encode_topology
from sax.wire.custom import encode_custom
from sax.wire.embed import (
    decode_classified,
    decode_classify,
    decode_embed,
    decode_embedded,
    decode_gradients,
    decode_pair_scores,
    encode_classified,
    encode_classify,
    encode_embed,
    encode_embed_question,
    encode_embedded,
    encode_gradient,
    encode_gradients,
    encode_pair_scores,
    encode_pairs,
)
from sax.wire.extra_inputs import (
    encode_extra_inputs,
    refuse_extra_inputs,
    sampling_from_extra_inputs,
)
from sax.wire.language import encode_question, encode_score
from sax.wire.models import (
    decode_load,
    decode_published,
    decode_share,
    decode_spec,
    encode_load,
    encode_published,
    encode_share,
    encode_spec,
)
from sax.wire.records import decode_event, decode_version, encode_event, encode_version
from sax.wire.servers import (
    decode_join,
    decode_joined,
    decode_stats,
    decode_status,
    encode_join,
    encode_joined,
    encode_stats,
    encode_status,
)
from sax.wire.tokens import (
    decode_chunk,
    decode_detokenize,
    decode_failure,
    decode_generate,
    decode_tokenize,
    encode_chunk,
    encode_detokenize,
    encode_failure,
    encode_generate,
    encode_tokenize,
    put_chunk,
    put_timeout,
)

__all__ = [
    "encode_pairs",
    "encode_pair_scores",
    "encode_gradients",
    "encode_gradient",
    "encode_classify",
    "encode_classified",
    "decode_pair_scores",
    "decode_gradients",
    "decode_classify",
    "decode_classified",
    "decode_chip",
    "decode_chunk",
    "decode_detokenize",
    "decode_embed",
    "decode_embedded",
    "decode_event",
    "decode_failure",
    "decode_generate",
    "decode_join",
    "decode_joined",
    "decode_load",
    "decode_published",
    "decode_share",
    "decode_spec",
    "decode_stats",
    "decode_status",
    "decode_tokenize",
    "decode_topology",
    "decode_version",
    "encode_chip",
    "encode_chunk",
    "encode_detokenize",
    "encode_custom",
    "encode_embed",
    "encode_embed_question",
    "encode_embedded",
    "encode_event",
    "encode_extra_inputs",
    "encode_failure",
    "encode_generate",
    "encode_join",
    "encode_joined",
    "encode_load",
    "encode_published",
    "encode_question",
    "encode_score",
    "encode_share",
    "encode_spec",
    "encode_stats",
    "encode_status",
    "encode_tokenize",
    "put_chunk",
    "put_timeout",
    "encode_topology",
    "encode_version",
    "refuse_extra_inputs",
    "sampling_from_extra_inputs",
]
