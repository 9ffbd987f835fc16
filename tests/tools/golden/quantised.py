"""Small weights as compressed-tensors stores them.

A file NAME.safetensors holds the stored tensors of a module `m` and `wanted`, the numbers that the
library widens them to in float32; its metadata the quantization_config.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OUT, IN = 40, 64

_INTEGER = {"type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
_ROWS = {"type": "int", "symmetric": True, "strategy": "channel"}
_FLOAT = {"type": "float", "symmetric": True, "num_bits": 8}
_SCALED = _FLOAT | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
_NVFP4 = {
    "num_bits": 4,
    "strategy": "tensor_group",
    "group_size": 16,
    "scale_dtype": "torch.float8_e4m3fn",
}
# name -> format, arguments of the weights
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "w4_groups": ("pack-quantized", _INTEGER | {"num_bits": 4}),
    "w4_groups_zeros": ("pack-quantized", _INTEGER | {"num_bits": 4, "symmetric": False}),
    "w8_groups": ("pack-quantized", _INTEGER | {"num_bits": 8}),
    "w3_groups_zeros": ("pack-quantized", _INTEGER | {"num_bits": 3, "symmetric": False}),
    "w6_rows": ("pack-quantized", _ROWS | {"num_bits": 6}),
    "int8_rows": ("int-quantized", _ROWS | {"num_bits": 8}),
    "int8_rows_zeros": ("int-quantized", _ROWS | {"num_bits": 8, "symmetric": False}),
    "float8_tensor": ("float-quantized", _FLOAT | {"strategy": "tensor"}),
    "float8_rows": ("float-quantized", _FLOAT | {"strategy": "channel"}),
    "float8_blocks": (
        "float-quantized",
        _FLOAT | {"strategy": "block", "block_structure": [16, 32]},
    ),
    "nvfp4": ("nvfp4-pack-quantized", _FLOAT | _NVFP4),
    "mxfp4": ("mxfp4-pack-quantized", _SCALED | {"num_bits": 4}),
    "mxfp8": ("mxfp8-quantized", _SCALED),
}


def make(name: str, into: Path) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors.torch import save_file

    form, arguments = CASES[name]
    inputs = IN - 4 if name == "w6_rows" else IN  # rows of 6 bits that fill no whole words
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    torch.manual_seed(len(name))
    shape = _scale_shape(args, inputs)
    state: dict[str, torch.Tensor] = {"weight": torch.randn(OUT, inputs)}
    if form.startswith("mx"):
        state["weight_scale"] = 2.0 ** torch.randint(-3, 2, shape).float()
    else:
        largest = 1 << (args.num_bits - 1) if args.type == "int" else 40
        state["weight_scale"] = (torch.rand(shape) + 0.5) * 4 / largest
    if form.startswith("nv"):
        state["weight_global_scale"] = torch.tensor([37.5])
        state["weight_scale"] = (state["weight_scale"] * 370).to(torch.float8_e4m3fn).float()
    if not args.symmetric:
        half = 1 << (args.num_bits - 1)
        state["weight_zero_point"] = torch.randint(-half, half, shape).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    wanted = compressor.decompress(stored, scheme)["weight"].float()
    tensors = {f"m.{key}": value.contiguous() for key, value in stored.items()}
    group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
    }
    into.mkdir(parents=True, exist_ok=True)
    save_file(
        {**tensors, "wanted": wanted},
        into / f"{name}.safetensors",
        {"quantization_config": json.dumps(config)},
    )


def _scale_shape(args: Any, inputs: int) -> tuple[int, ...]:
    match args.strategy:
        case "tensor":
            return (1,)
        case "channel":
            return (OUT, 1)
        case "block":
            down, across = args.block_structure or (1, 1)
            return (-(-OUT // down), -(-inputs // across))
        case _:
            return (OUT, inputs // (args.group_size or inputs))
