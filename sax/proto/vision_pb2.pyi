from sax.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClassifyRequest(_message.Message):
    __slots__ = ("model_key", "image_bytes", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    image_bytes: bytes
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., image_bytes: _Optional[bytes] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class DecodedText(_message.Message):
    __slots__ = ("text", "score")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedCompositeFieldContainer[DecodedText]
    def __init__(self, texts: _Optional[_Iterable[_Union[DecodedText, _Mapping]]] = ...) -> None: ...

class TextToImageRequest(_message.Message):
    __slots__ = ("model_key", "text", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    text: str
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., text: _Optional[str] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class TextAndImageToImageRequest(_message.Message):
    __slots__ = ("model_key", "text", "image_bytes", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    text: str
    image_bytes: bytes
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., text: _Optional[str] = ..., image_bytes: _Optional[bytes] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class ImageGenerations(_message.Message):
    __slots__ = ("image", "score")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    image: bytes
    score: float
    def __init__(self, image: _Optional[bytes] = ..., score: _Optional[float] = ...) -> None: ...

class TextToImageResponse(_message.Message):
    __slots__ = ("images",)
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedCompositeFieldContainer[ImageGenerations]
    def __init__(self, images: _Optional[_Iterable[_Union[ImageGenerations, _Mapping]]] = ...) -> None: ...

class TextAndImageToImageResponse(_message.Message):
    __slots__ = ("images",)
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedCompositeFieldContainer[ImageGenerations]
    def __init__(self, images: _Optional[_Iterable[_Union[ImageGenerations, _Mapping]]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model_key", "image_bytes", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    image_bytes: bytes
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., image_bytes: _Optional[bytes] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embedding",)
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, embedding: _Optional[_Iterable[float]] = ...) -> None: ...

class DetectionMask(_message.Message):
    __slots__ = ("mask_values", "mask_height", "mask_width")
    MASK_VALUES_FIELD_NUMBER: _ClassVar[int]
    MASK_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    MASK_WIDTH_FIELD_NUMBER: _ClassVar[int]
    mask_values: bytes
    mask_height: int
    mask_width: int
    def __init__(self, mask_values: _Optional[bytes] = ..., mask_height: _Optional[int] = ..., mask_width: _Optional[int] = ...) -> None: ...

class BoundingBox(_message.Message):
    __slots__ = ("cx", "cy", "w", "h", "text", "score", "mask")
    CX_FIELD_NUMBER: _ClassVar[int]
    CY_FIELD_NUMBER: _ClassVar[int]
    W_FIELD_NUMBER: _ClassVar[int]
    H_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    cx: float
    cy: float
    w: float
    h: float
    text: str
    score: float
    mask: DetectionMask
    def __init__(self, cx: _Optional[float] = ..., cy: _Optional[float] = ..., w: _Optional[float] = ..., h: _Optional[float] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., mask: _Optional[_Union[DetectionMask, _Mapping]] = ...) -> None: ...

class DetectRequest(_message.Message):
    __slots__ = ("model_key", "image_bytes", "text", "boxes_of_interest", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BOXES_OF_INTEREST_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    image_bytes: bytes
    text: _containers.RepeatedScalarFieldContainer[str]
    boxes_of_interest: _containers.RepeatedCompositeFieldContainer[BoundingBox]
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., image_bytes: _Optional[bytes] = ..., text: _Optional[_Iterable[str]] = ..., boxes_of_interest: _Optional[_Iterable[_Union[BoundingBox, _Mapping]]] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class DetectResponse(_message.Message):
    __slots__ = ("bounding_boxes",)
    BOUNDING_BOXES_FIELD_NUMBER: _ClassVar[int]
    bounding_boxes: _containers.RepeatedCompositeFieldContainer[BoundingBox]
    def __init__(self, bounding_boxes: _Optional[_Iterable[_Union[BoundingBox, _Mapping]]] = ...) -> None: ...

class ImageToTextRequest(_message.Message):
    __slots__ = ("model_key", "image_bytes", "text", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    image_bytes: bytes
    text: str
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., image_bytes: _Optional[bytes] = ..., text: _Optional[str] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class ImageToTextResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedCompositeFieldContainer[DecodedText]
    def __init__(self, texts: _Optional[_Iterable[_Union[DecodedText, _Mapping]]] = ...) -> None: ...

class ImageToImageRequest(_message.Message):
    __slots__ = ("model_key", "image_bytes", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    image_bytes: bytes
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., image_bytes: _Optional[bytes] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class ImageToImageResponse(_message.Message):
    __slots__ = ("images",)
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedCompositeFieldContainer[ImageGenerations]
    def __init__(self, images: _Optional[_Iterable[_Union[ImageGenerations, _Mapping]]] = ...) -> None: ...

class VideoToTextRequest(_message.Message):
    __slots__ = ("model_key", "image_frames", "text", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    image_frames: _containers.RepeatedScalarFieldContainer[bytes]
    text: str
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., image_frames: _Optional[_Iterable[bytes]] = ..., text: _Optional[str] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class VideoToTextResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedCompositeFieldContainer[DecodedText]
    def __init__(self, texts: _Optional[_Iterable[_Union[DecodedText, _Mapping]]] = ...) -> None: ...

class VideoToTokenRequest(_message.Message):
    __slots__ = ("model_key", "image_frames", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    image_frames: _containers.RepeatedScalarFieldContainer[bytes]
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., image_frames: _Optional[_Iterable[bytes]] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class VideoToTokenResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, tokens: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenToVideoRequest(_message.Message):
    __slots__ = ("model_key", "tokens", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    tokens: _containers.RepeatedScalarFieldContainer[float]
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., tokens: _Optional[_Iterable[float]] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class TokenToVideoResponse(_message.Message):
    __slots__ = ("image_frames",)
    IMAGE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    image_frames: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, image_frames: _Optional[_Iterable[bytes]] = ...) -> None: ...
