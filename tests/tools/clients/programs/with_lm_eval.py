"""lm-eval: EleutherAI's evaluation harness, over a task of six questions that lies beside this."""

import os
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

PACKAGE = "lm-eval"
_TASKS = Path(__file__).parents[1] / "tasks"
_URL, _MODEL = os.environ["SAX_CLIENTS_URL"], os.environ["SAX_CLIENTS_MODEL"]


def _evaluate(task: str, **fields: object) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        text = (_TASKS / f"{task}.yaml").read_text()
        made = Path(folder, f"{task}.yaml")
        made.write_text(text.replace("DATA", str(_TASKS / "capitals.jsonl")))
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": _MODEL,
                "base_url": f"{_URL}/v1/completions",
                "tokenizer_backend": "huggingface",
                "tokenizer": os.environ["SAX_CLIENTS_TOKENIZER"],
                "max_retries": 1,
                "num_concurrent": 2,
                **fields,
            },
            tasks=[task],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            bootstrap_iters=0,
        )
    return {name.partition(",")[0]: value for name, value in found["results"][task].items()}


def generate_until() -> None:
    """`local-completions`, `generate_until`: exact matches"""
    assert _evaluate("capitals_generated")["exact_match"] > 0.8


def loglikelihood() -> None:
    """`local-completions`, `loglikelihood`: the likelier of two answers"""
    assert _evaluate("capitals_chosen")["acc"] > 0.8


def texts() -> None:
    """`local-completions` with texts instead of token ids, `generate_until`"""
    assert _evaluate("capitals_generated", tokenized_requests=False)["exact_match"] > 0.8
