"""Publishes a LoRA adapter beside its base: both are served by one engine with one set of weights.

    pip install numpy safetensors
    sax convert MODEL.gguf ./base          # a Hugging Face folder, if yours is not one yet
    python examples/adapter.py ./base [./adapter]

With your own adapter, the folder that PEFT saved, name it; without one, one of random factors is
made in ./adapter. It stands for what you trained, and says other words than its base.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sax import Client, GenerateRequest, Message, SamplingParams

BASE, ADAPTED = "/sax/test/base", "/sax/test/adapted"
RANK = 4


def make_adapter(base: Path, folder: Path) -> None:
    """Write what PEFT writes: low-rank factors for the queries and values of every layer."""
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file

    random, factors = np.random.default_rng(0), {}
    with safe_open(base / "model.safetensors", framework="numpy") as stored:
        for name in sorted(stored.keys()):
            if name.endswith(("q_proj.weight", "v_proj.weight")):
                outputs, inputs = stored.get_slice(name).get_shape()
                module = f"base_model.model.{name.removesuffix('.weight')}"
                for letter, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                    drawn = random.normal(scale=0.05, size=shape).astype(np.float32)
                    factors[f"{module}.lora_{letter}.weight"] = drawn
    folder.mkdir(parents=True, exist_ok=True)
    save_file(factors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main(base: Path, folder: Path) -> None:
    if not (folder / "adapter_config.json").exists():
        make_adapter(base, folder)
    with Client() as client:
        # Room for adapters belongs to the base's memory plan.
        room = {"MAX_ADAPTERS": "2", "MAX_ADAPTER_RANK": "16"}
        publish(client, BASE, "auto", base, room)
        publish(client, ADAPTED, "lora", folder, {"BASE": json.dumps(BASE)})
        for model in (BASE, ADAPTED):
            request = GenerateRequest(
                model_id=model,
                prompt=(Message("user", "What is the capital of France?"),),
                sampling=SamplingParams(temperature=0, max_tokens=16),
            )
            print(f"{model}: {''.join(chunk.text for chunk in client.generate(request))!r}")
        client.unpublish(ADAPTED)
        client.unpublish(BASE)


def publish(
    client: Client, model: str, path: str, checkpoint: Path, overrides: dict[str, str]
) -> None:
    client.publish(model, path, str(checkpoint.resolve()), overrides=overrides)
    client.wait_for_ready(model)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "adapter"))
