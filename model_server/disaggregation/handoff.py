"""Convert prefill requests and KV handoffs to and from protobuf messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from model_server.disaggregation.contract import Contract
from model_server.engine.request import EngineRequest
from model_server.engine.types import RowResult, Sampling
from sax.errors import InvalidRequest
from sax.proto import prefill_pb2

_GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


@dataclass(frozen=True, slots=True)
class KvHandoff:
    """The first token, and where the prompt's pages can be fetched."""

    addresses: tuple[str, ...]  # one per host
    expires_s: float
    first: RowResult


def encode_ask(
    model_id: str, contract: Contract, engine_request: EngineRequest, key: int
) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(
        model_key=model_id,
        contract=prefill_pb2.Contract(**asdict(contract)),
        tokens=engine_request.prompt,
        sampling=msgspec.msgpack.encode(msgspec.structs.asdict(engine_request.sampling)),
        key=key,
        account=engine_request.account,
        member=engine_request.member,
        priority=engine_request.priority,
        salt=engine_request.salt,
    )


def decode_contract(message: prefill_pb2.Contract) -> Contract:
    return Contract(**{name: getattr(message, name) for name in Contract.__dataclass_fields__})


def decode_ask(message: prefill_pb2.PrefillRequest) -> EngineRequest:
    """Decode to a request for one token, without stop ids. Raises InvalidRequest."""
    return EngineRequest(
        prompt=tuple(message.tokens),
        sampling=_decode_sampling(message.sampling),
        max_tokens=1,
        stop_ids=frozenset(),
        account=message.account,
        member=message.member,
        priority=message.priority,
        salt=message.salt,
    )


def _decode_sampling(packed: bytes) -> Sampling:
    try:
        given = msgspec.msgpack.decode(packed, type=dict[str, Any])
        if unknown := given.keys() - set(Sampling.__struct_fields__):
            raise InvalidRequest(
                f"this server does not know {', '.join(sorted(unknown))}: start both with the same "
                "version of sax",
                param="sampling",
            )
        known = {**msgspec.structs.asdict(_GREEDY), **given}
        return msgspec.convert([known[name] for name in Sampling.__struct_fields__], Sampling)
    except msgspec.MsgspecError as exc:
        raise InvalidRequest(f"the sampling cannot be read: {exc}", param="sampling") from exc


def encode_handoff(handoff: KvHandoff) -> prefill_pb2.Ticket:
    first = handoff.first
    return prefill_pb2.Ticket(
        addresses=handoff.addresses,
        expires_s=handoff.expires_s,
        token=first.token,
        logprob=first.logprob,
        top=[prefill_pb2.TopToken(token=token, logprob=logprob) for token, logprob in first.top],
    )


def decode_handoff(message: prefill_pb2.Ticket) -> KvHandoff:
    top = tuple((each.token, each.logprob) for each in message.top)
    return KvHandoff(
        addresses=tuple(message.addresses),
        expires_s=message.expires_s,
        first=RowResult(message.token, message.logprob, top),
    )
