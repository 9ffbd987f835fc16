"""Methods of Saxml's services that its tools and clients ask a model server: path and reply.

Language and custom methods are served here, sounds, of images Classify and Embed, and multimodal
Generate and Score. Others are refused with those that a model serves.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from sax.proto import (
    audio_pb2,
    custom_pb2,
    lm_pb2,
    modelet_pb2,
    multimodal_pb2,
    speech_pb2,
    transcripts_pb2,
    vision_pb2,
)

Reply = TypeVar("Reply", bound=Message)


class RpcMethod(NamedTuple, Generic[Reply]):
    path: str  # /package.Service/Method
    reply: type[Reply]


SCORE = RpcMethod("/sax.server.lm.LMService/Score", lm_pb2.ScoreResponse)
EMBED = RpcMethod("/sax.server.lm.LMService/Embed", lm_pb2.EmbedResponse)
GRADIENT = RpcMethod("/sax.server.lm.LMService/Gradient", lm_pb2.GradientResponse)
GENERATE = RpcMethod("/sax.server.lm.LMService/Generate", lm_pb2.GenerateResponse)
GENERATE_STREAM = RpcMethod(
    "/sax.server.lm.LMService/GenerateStream", lm_pb2.GenerateStreamResponse
)
CUSTOM = RpcMethod("/sax.server.custom.CustomService/Custom", custom_pb2.CustomResponse)
TRANSCRIBE = RpcMethod(
    "/sax.transcripts.TranscriptService/Transcribe", transcripts_pb2.TranscribeResponse
)
SPEAK = RpcMethod("/sax.speech.SpeechService/Speak", speech_pb2.SpeakResponse)
RECOGNIZE = RpcMethod("/sax.server.audio.AudioService/Recognize", audio_pb2.AsrResponse)

SAVE = RpcMethod("/sax.Modelet/Save", modelet_pb2.SaveResponse)
EXPORT = RpcMethod("/sax.Modelet/Export", modelet_pb2.ExportResponse)

_MULTIMODAL = "/sax.server.multimodal.MultimodalService"
MM_GENERATE = RpcMethod(f"{_MULTIMODAL}/Generate", multimodal_pb2.GenerateRpcResponse)
MM_SCORE = RpcMethod(f"{_MULTIMODAL}/Score", multimodal_pb2.ScoreRpcResponse)
MM_EMBED = RpcMethod(f"{_MULTIMODAL}/Embed", multimodal_pb2.EmbedRpcResponse)

_VISION = "/sax.server.vision.VisionService"
CLASSIFY = RpcMethod(f"{_VISION}/Classify", vision_pb2.ClassifyResponse)
TEXT_TO_IMAGE = RpcMethod(f"{_VISION}/TextToImage", vision_pb2.TextToImageResponse)
TEXT_AND_IMAGE_TO_IMAGE = RpcMethod(
    f"{_VISION}/TextAndImageToImage", vision_pb2.TextAndImageToImageResponse
)
EMBED_IMAGE = RpcMethod(f"{_VISION}/Embed", vision_pb2.EmbedResponse)
DETECT = RpcMethod(f"{_VISION}/Detect", vision_pb2.DetectResponse)
IMAGE_TO_TEXT = RpcMethod(f"{_VISION}/ImageToText", vision_pb2.ImageToTextResponse)
IMAGE_TO_IMAGE = RpcMethod(f"{_VISION}/ImageToImage", vision_pb2.ImageToImageResponse)
VIDEO_TO_TEXT = RpcMethod(f"{_VISION}/VideoToText", vision_pb2.VideoToTextResponse)
VIDEO_TO_TOKEN = RpcMethod(f"{_VISION}/VideoToToken", vision_pb2.VideoToTokenResponse)
TOKEN_TO_VIDEO = RpcMethod(f"{_VISION}/TokenToVideo", vision_pb2.TokenToVideoResponse)
