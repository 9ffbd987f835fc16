"""Saxml's Model: the way from a published model to its methods."""

from __future__ import annotations

from sax.names import ModelId
from sax.saxml.audio_model import AudioModel
from sax.saxml.custom_model import CustomModel
from sax.saxml.language_model import LanguageModel
from sax.saxml.model_handle import ModelHandle
from sax.saxml.multimodal_model import MultimodalModel
from sax.saxml.options import Options
from sax.saxml.vision_model import VisionModel


class Model:
    """A published model."""

    def __init__(self, id: str, options: Options | None = None) -> None:
        self._handle = ModelHandle(str(ModelId.parse(id)), (options or Options()).route())

    def LM(self) -> LanguageModel:
        return LanguageModel(self._handle)

    def VM(self) -> VisionModel:
        return VisionModel(self._handle)

    def AM(self) -> AudioModel:
        return AudioModel(self._handle)

    def MM(self) -> MultimodalModel:
        return MultimodalModel(self._handle)

    def CM(self) -> CustomModel:
        return CustomModel(self._handle)
