"""Images of an engine request: what their tokens are replaced by, and positions beside them."""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.engine import EngineRequest
from model_server.engine.media.media_span import MediaSpan
from model_server.loading.images.prepared import PreparedImage
from model_server.loading.loaded import Loaded
from model_server.serving.chats.placeholders import places_of, runs_of, triples_of


def with_images(
    asked: EngineRequest, images: tuple[PreparedImage, ...], loaded: Loaded
) -> EngineRequest:
    """Return a request whose prompt has the tokens of these images, with the images themselves.

    Raises InvalidRequest if the prompt has not as many of them.
    """
    assert loaded.images is not None
    recipe = loaded.images.recipe
    places = places_of(asked.prompt, recipe.tokens, [image.rows for image in images])
    spans = tuple(
        MediaSpan(image.digest, runs_of(each), image.count, image.pieces, image.places)
        for image, each in zip(images, places, strict=True)
    )
    if not recipe.triples:
        return replace(asked, media=spans)
    length = len(asked.prompt)
    grids = [(image.grid, image.frame) for image in images]
    positions, following = triples_of(length, places, grids)
    told = positions.astype("<i4").tobytes()
    return replace(asked, media=spans, positions=told, shift=following - length)
