"""Makes tests/golden/quantised/*: small weights as compressed-tensors stores them.

Run by hand, in an environment with torch and compressed-tensors, from the repository root:

    python -m tests.golden.make_quantised

Each file NAME.safetensors holds the stored tensors of a module `m` and `wanted`, the numbers that
the library widens them to in float32; its metadata the quantization_config.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

HERE = Path(__file__).parent / "quantised"
OUT, IN = 40, 64

INTEGER = {"type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FLOAT = {"type": "float", "symmetric": True}
# name -> format, arguments of the weights, inputs
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "w4_groups": ("pack-quantized", INTEGER | {"num_bits": 4}, IN),
    "w4_groups_zeros": ("pack-quantized", INTEGER | {"num_bits": 4, "symmetric": False}, IN),
    "w8_groups": ("pack-quantized", INTEGER | {"num_bits": 8}, IN),
    "w3_groups_zeros": ("pack-quantized", INTEGER | {"num_bits": 3, "symmetric": False}, IN),
    "w6_rows": (
        "pack-quantized",
        {"type": "int", "num_bits": 6, "symmetric": True, "strategy": "channel"},
        IN - 4,
    ),
    "int8_rows": (
        "int-quantized",
        {"type": "int", "num_bits": 8, "symmetric": True, "strategy": "channel"},
        IN,
    ),
    "int8_rows_zeros": (
        "int-quantized",
        {"type": "int", "num_bits": 8, "symmetric": False, "strategy": "channel"},
        IN,
    ),
    "float8_tensor": ("float-quantized", FLOAT | {"num_bits": 8, "strategy": "tensor"}, IN),
    "float8_rows": ("float-quantized", FLOAT | {"num_bits": 8, "strategy": "channel"}, IN),
    "float8_blocks": (
        "float-quantized",
        FLOAT | {"num_bits": 8, "strategy": "block", "block_structure": [16, 32]},
        IN,
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        FLOAT
        | {
            "num_bits": 4,
            "strategy": "tensor_group",
            "group_size": 16,
            "scale_dtype": "torch.float8_e4m3fn",
        },
        IN,
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        FLOAT
        | {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        IN,
    ),
    "mxfp8": (
        "mxfp8-quantized",
        FLOAT
        | {"num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        IN,
    ),
}


def scale_shape(args: QuantizationArgs, inputs: int) -> tuple[int, ...]:
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


def make(name: str) -> None:
    form, arguments, inputs = CASES[name]
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    torch.manual_seed(len(name))
    shape = scale_shape(args, inputs)
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
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
        },
    }
    save_file(
        {**tensors, "wanted": wanted},
        HERE / f"{name}.safetensors",
        {"quantization_config": json.dumps(config)},
    )


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name in CASES:
        make(name)


if __name__ == "__main__":
    main()
