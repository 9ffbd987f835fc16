"""Element types: IFRT's numbers, numpy's, and the names they have in MLIR."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from model_server.pathways.protocol import DTypeProto
from model_server.pathways.worker.statuses import Refused

# KIND_* of DTypeProto, numpy, MLIR.
_KINDS = (
    ("PRED", np.bool_, "i1"),
    ("S4", ml_dtypes.int4, "i4"),
    ("S8", np.int8, "i8"),
    ("S16", np.int16, "i16"),
    ("S32", np.int32, "i32"),
    ("S64", np.int64, "i64"),
    ("U4", ml_dtypes.uint4, "ui4"),
    ("U8", np.uint8, "ui8"),
    ("U16", np.uint16, "ui16"),
    ("U32", np.uint32, "ui32"),
    ("U64", np.uint64, "ui64"),
    ("F16", np.float16, "f16"),
    ("F32", np.float32, "f32"),
    ("F64", np.float64, "f64"),
    ("BF16", ml_dtypes.bfloat16, "bf16"),
    ("C64", np.complex64, "complex<f32>"),
    ("C128", np.complex128, "complex<f64>"),
    ("S2", ml_dtypes.int2, "i2"),
    ("U2", ml_dtypes.uint2, "ui2"),
    ("F8E3M4", ml_dtypes.float8_e3m4, "f8E3M4"),
    ("F8E4M3", ml_dtypes.float8_e4m3, "f8E4M3"),
    ("F8E4M3FN", ml_dtypes.float8_e4m3fn, "f8E4M3FN"),
    ("F8E4M3B11FNUZ", ml_dtypes.float8_e4m3b11fnuz, "f8E4M3B11FNUZ"),
    ("F8E4M3FNUZ", ml_dtypes.float8_e4m3fnuz, "f8E4M3FNUZ"),
    ("F8E5M2", ml_dtypes.float8_e5m2, "f8E5M2"),
    ("F8E5M2FNUZ", ml_dtypes.float8_e5m2fnuz, "f8E5M2FNUZ"),
    ("F8E8M0FNU", ml_dtypes.float8_e8m0fnu, "f8E8M0FNU"),
    ("F4E2M1FN", ml_dtypes.float4_e2m1fn, "f4E2M1FN"),
)
STRING = DTypeProto.Kind.Value("KIND_STRING")
_NUMPY = {DTypeProto.Kind.Value(f"KIND_{kind}"): np.dtype(of) for kind, of, _ in _KINDS}
_NUMBERS = {dtype: number for number, dtype in _NUMPY.items()}
_MLIR = {name: np.dtype(of) for _, of, name in _KINDS}


def numpy_dtype(kind: int) -> np.dtype:
    """Raises Refused for strings, tokens and opaque types."""
    if (dtype := _NUMPY.get(kind)) is None:
        raise Refused(
            f"arrays of {DTypeProto.Kind.Name(kind)} cannot be held here; send numbers instead"
        )
    return dtype


def ifrt_kind(dtype: np.dtype) -> int:
    return _NUMBERS[np.dtype(dtype)]


def mlir_dtype(name: str) -> np.dtype | None:
    """Return the type of an MLIR name; None for tokens, which are no numbers."""
    return _MLIR.get(name)
