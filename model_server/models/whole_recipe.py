"""A decoder family's recipe read as one that makes no tokens: it embeds or classifies."""

from __future__ import annotations

from model_server.models.layers.decoder import Decoder
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.layers.layers import Linear
from model_server.models.layers.whole_decoder import LastTokenHead, NextTokenScore, WholeDecoder
from model_server.models.recipe import Recipe
from model_server.models.weights.weight import WeightForm
from sax.errors import InvalidRequest

_BATCH = 16  # most inputs per step, as of encoders
_HEADS = ("lm_head.", "score.")


def whole_recipe(recipe: Recipe) -> EmbedRecipe:
    """Return the recipe of an embedder or classifier. Raises InvalidRequest for one in stages."""
    _check_one_stage(recipe)

    def decoder(form: WeightForm) -> Decoder:
        made = recipe.build(form)
        assert isinstance(made, Decoder), "every language model is a decoder"
        return made

    def build(form: WeightForm) -> WholeDecoder:
        return WholeDecoder(decoder(form), causal=recipe.causal)

    def classifier(form: WeightForm, labels: int) -> LastTokenHead:
        head = Linear(labels, recipe.embed, (None, "embed"), ("score.weight",), form=form)
        return LastTokenHead(build(form), head)

    return EmbedRecipe(
        build=build,
        build_classifier=classifier,
        build_scorer=lambda form, score: NextTokenScore(decoder(form), score),
        embed=recipe.embed,
        vocab=recipe.vocab,
        own_context=recipe.max_context,
        max_context=recipe.tasks.max_context,
        dtype=recipe.dtype,
        batch=_BATCH,
        mesh_shape=recipe.mesh_shape,
        rules=recipe.rules,
        unused=(*recipe.unused, *_HEADS),
        unused_in_classes=(*recipe.unused, *_HEADS[:1]),
        unused_in_scores=recipe.unused,
        tasks=recipe.tasks,
        quantize=recipe.quantize,
        # The last token is the only one of a causal model that has seen all others.
        pooling="last" if recipe.causal else "mean",
        embeds_only=not recipe.causal,
        chat_template=recipe.chat.template,
    )


def _check_one_stage(recipe: Recipe) -> None:
    if recipe.stages > 1:
        raise InvalidRequest(
            "a model that only embeds or ranks has one stage: leave NUM_STAGES out, or give its "
            "devices by ICI_MESH_SHAPE",
            param="overrides.NUM_STAGES",
        )
