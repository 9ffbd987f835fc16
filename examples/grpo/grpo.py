"""Policy gradients with sax as the sampler: a small Llama is rewarded for adding two digits.

    python -m examples.grpo.grpo                        # the sampler is in this process
    python -m examples.grpo.grpo --model /sax/test/adder    # or a published model of a cell

Every step samples groups of answers, rewards them, moves the weights along the policy's gradient
and gives them to the sampler, which serves on. Tokens are scored again before the gradient, as a
trainer does: by the program that sampled them, so that with the native CPU kernels both
log-probabilities are equal, bit for bit, and the ratio of the policies is exactly 1. The gradient
is that of the model in plain JAX, whose own log-probabilities differ (`plain` in the log).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.grpo import policy

OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
ENTROPY = 0.05  # of the loss: a policy that settles too early no longer explores
PROMPTS, ANSWERS, DIGITS = 16, 8, 2  # of a step; answers of a prompt; tokens of an answer
_DIFFER = (
    "the trainer's log-probabilities differ from the sampler's by {}: `sax doctor` says whether "
    "the native kernels run here; --inexact goes on without them"
)


class Answer(Protocol):
    @property
    def tokens(self) -> tuple[int, ...]: ...

    @property
    def logprobs(self) -> tuple[float, ...]: ...


class PolicySampler(Protocol):
    """`model_server.serving.sampler.Sampler`, or `examples.grpo.cell.CellSampler`."""

    def sample(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, seed: int
    ) -> Sequence[Answer]: ...

    def score(
        self, texts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[tuple[float, ...]]: ...

    def update_weights(self, source: Mapping[str, Any]) -> str: ...


class Moved(NamedTuple):
    """The weights after a step, and what the plain model said of its tokens."""

    weights: policy.Weights
    state: optax.OptState
    served: policy.Weights
    plain: jax.Array  # f32[B, N]


class Step(NamedTuple):
    """Figures of one step."""

    reward: float  # mean, from 0 to 1
    divergence: float  # largest, of the trainer's log-probabilities from the sampler's
    plain: float  # the same, of those of the model in plain JAX


def rewards(numbers: tuple[int, int], answer: tuple[int, ...]) -> list[float]:
    """Return 1 for each of the sum's two digits that is right, a tenth for any other digit."""
    wanted = policy.ids_of(f"{sum(numbers):02}")
    digits = policy.ids_of("0123456789")
    told = zip(wanted, (*answer, -1, -1), strict=False)
    return [1.0 if got == want else 0.1 * (got in digits) for want, got in told]


@jax.jit
def moved(
    weights: policy.Weights,
    state: optax.OptState,
    ids: np.ndarray,
    logprobs: np.ndarray,
    advantages: np.ndarray,
) -> Moved:
    """Move the weights along the gradient of the policy's loss.

    ids: i32[B, T]. logprobs: f32[B, N], the trainer's of the last N tokens. advantages: f32[B, N].
    """

    def loss(weights: policy.Weights) -> tuple[jax.Array, jax.Array]:
        of_all = policy.log_probabilities(weights, jnp.asarray(ids))[:, -DIGITS:]
        plain = jnp.take_along_axis(of_all, ids[:, -DIGITS:, None], axis=-1)[..., 0]
        value = logprobs + plain - jax.lax.stop_gradient(plain)  # their value, its gradient
        ratio = jnp.exp(value - logprobs)
        entropy = -jnp.mean(jnp.sum(jnp.exp(of_all) * of_all, axis=-1))
        return -jnp.mean(ratio * advantages) - ENTROPY * entropy, plain

    gradient, plain = jax.grad(loss, has_aux=True)(weights)
    changes, state = OPTIMISER.update(gradient, state, weights)
    after: Any = optax.apply_updates(weights, changes)
    return Moved(after, state, policy.served(after), plain)


def train(sampler: PolicySampler, steps: int, seed: int = 0) -> Iterator[Step]:
    """Train from random weights, which the sampler is given first; yield each step."""
    weights = policy.random_weights(seed)
    state = jax.jit(OPTIMISER.init)(weights)
    draw = np.random.default_rng(seed)
    sampler.update_weights(policy.served(weights))
    for number in range(steps):
        pairs = [(int(a), int(b)) for a, b in draw.integers(0, 10, (PROMPTS, 2))]
        asked = [pair for pair in pairs for _ in range(ANSWERS)]
        prompts = [policy.ids_of(f"{a}+{b}=") for a, b in asked]
        answers = sampler.sample(prompts, max_tokens=DIGITS, seed=number * len(prompts))
        texts = [(*prompt, *one.tokens) for prompt, one in zip(prompts, answers, strict=True)]
        scored = np.array(sampler.score(texts, [len(each) for each in prompts]), np.float32)
        sampled = np.array([one.logprobs for one in answers], np.float32)
        told = zip(asked, answers, strict=True)
        earned = np.array([rewards(numbers, answer.tokens) for numbers, answer in told])
        ids = np.array(texts, np.int32)
        weights, state, served, plain = moved(weights, state, ids, scored, _advantages(earned))
        sampler.update_weights(served)
        divergence, rounding = (np.abs(each - sampled).max() for each in (scored, plain))
        yield Step(float(earned.mean()), float(divergence), float(rounding))


def _advantages(earned: np.ndarray) -> np.ndarray:
    """f32[B, N]: each digit's reward beside those of the other answers to its prompt."""
    groups = earned.reshape(PROMPTS, ANSWERS, DIGITS)
    spread = groups.std(1, keepdims=True) + 0.1
    return (
        ((groups - groups.mean(1, keepdims=True)) / spread).reshape(-1, DIGITS).astype(np.float32)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--model", help="a published model, in place of a sampler in this process")
    parser.add_argument("--write", type=Path, help="write the first checkpoint there, and end")
    parser.add_argument("--plot", type=Path, help="an SVG of the rewards")
    parser.add_argument(
        "--inexact", action="store_true", help="go on where XLA computes what the kernels would"
    )
    flags = parser.parse_args()
    if flags.write:
        policy.write_folder(flags.write, policy.random_weights(0))
        return
    taken: list[Step] = []
    with _sampler(flags.model) as sampler:
        for number, step in enumerate(train(sampler, flags.steps)):
            taken.append(step)
            if number % 20 == 0 or number == flags.steps - 1:
                told = f"divergence {step.divergence} plain {step.plain:.1e}"
                print(f"step {number}: reward {step.reward:.3f} {told}", flush=True)
            if step.divergence and not flags.inexact:
                parser.exit(1, f"step {number}: {_DIFFER.format(step.divergence)}\n")
    print(f"largest divergence of all steps: {max(each.divergence for each in taken)}")
    if flags.plot:
        flags.plot.write_text(plotted([each.reward for each in taken]))


def _sampler(model: str | None) -> Any:
    if model is not None:
        from examples.grpo.cell import CellSampler

        return CellSampler(model)
    from model_server.config import ModelServerConfig
    from model_server.serving.sampler import Sampler

    folder = Path(tempfile.mkdtemp(prefix="grpo-")) / "policy"
    policy.write_folder(folder, policy.random_weights(0))
    return Sampler(str(folder), config=ModelServerConfig(slots=16, page_size=16, max_context=64))


def plotted(rewards: Sequence[float], width: int = 640, height: int = 240) -> str:
    """Return an SVG of the mean reward of each 10 steps."""
    means = [float(np.mean(rewards[at : at + 10])) for at in range(0, len(rewards), 10)]
    across = (width - 60) / max(1, len(means) - 1)
    points = " ".join(
        f"{40 + at * across:.1f},{height - 30 - mean * (height - 50):.1f}"
        for at, mean in enumerate(means)
    )
    lines = "".join(
        f'<text x="8" y="{height - 26 - at * (height - 50):.0f}">{at:g}</text>'
        for at in (0, 0.5, 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'{lines}<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="2"/>'
        f'<text x="40" y="{height - 8}">mean reward of 10 steps, over {len(rewards)} steps</text>'
        "</svg>\n"
    )


if __name__ == "__main__":
    main()
