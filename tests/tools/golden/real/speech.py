"""speech.json: what transformers hears in the passage with the real whisper-tiny.en, decoded
greedily, and when OpenAI's `whisper` (the package openai-whisper) says that each word is said.

It holds start and end, in seconds, and text of each segment and of each word.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.ctranslate2.whisper_folder import write_whisper
from tests.golden.passage import RATE, passage, recordings
from tests.tools.golden import common


def make(source: Path, into: Path) -> None:
    import transformers

    sounds = source.parents[1] / "speech"
    with tempfile.TemporaryDirectory() as made:
        folder = write_whisper(source, Path(made) / "folder")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json")
        )
        model = transformers.WhisperForConditionalGeneration.from_pretrained(
            folder, dtype="float32"
        )
        model.generation_config = _settings(folder, tokenizer)
        heads = common.read_json(folder / "generation_config.json")["alignment_heads"]
    extract = transformers.WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)
    sound = passage(recordings(sounds))
    features = extract(sound, sampling_rate=RATE, return_tensors="pt").input_features
    said = model.eval().generate(features, return_timestamps=True, return_segments=True)
    segments = [_segment(tokenizer, each) for each in said["segments"][0]]
    held = {
        "how": common.how("real", "speech", "float32"),
        "segments": segments,
        "words": _words(model, "".join(each["text"] for each in segments), sound, heads),
    }
    (into / "speech.json").write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


def _settings(folder: Path, tokenizer: Any) -> Any:
    """Return the folder's settings with the ids that only the reference needs spelled out."""
    import transformers

    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    return transformers.GenerationConfig(
        **common.read_json(folder / "generation_config.json"),
        bos_token_id=end,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
        eos_token_id=end,
        max_length=448,
        no_timestamps_token_id=tokenizer.convert_tokens_to_ids("<|notimestamps|>"),
        pad_token_id=end,
        prev_sot_token_id=tokenizer.convert_tokens_to_ids("<|startofprev|>"),
        return_timestamps=False,
    )


def _segment(tokenizer: Any, segment: Any) -> dict[str, Any]:
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    spoken = [token for token in segment["tokens"].tolist() if token < end]
    start, stop = (round(float(segment[key]), 2) for key in ("start", "end"))
    return {"start": start, "end": stop, "text": tokenizer.decode(spoken)}


_RENAMED = (
    ("model.", ""),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("layers.", "blocks."),
    ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("self_attn.", "attn."),
    ("encoder_attn.", "cross_attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
)


def _words(model: Any, text: str, sound: Any, heads: Any) -> list[dict[str, Any]]:
    """When each word of the text is said, in a sound of one window."""
    import torch
    from whisper.audio import log_mel_spectrogram, pad_or_trim
    from whisper.model import ModelDimensions, Whisper
    from whisper.timing import find_alignment, merge_punctuations
    from whisper.tokenizer import get_tokenizer

    sizes = model.config
    dims = ModelDimensions(
        *(sizes.num_mel_bins, sizes.max_source_positions, sizes.d_model),
        *(sizes.encoder_attention_heads, sizes.encoder_layers, sizes.vocab_size),
        *(sizes.max_target_positions, sizes.d_model),
        *(sizes.decoder_attention_heads, sizes.decoder_layers),
    )
    theirs = Whisper(dims)
    renamed = {}
    for name, tensor in model.state_dict().items():
        for ours, other in _RENAMED:
            name = name.replace(ours, other)
        renamed[name] = tensor
    renamed.pop("proj_out.weight")  # the embedding
    theirs.load_state_dict(renamed)
    mask = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
    for layer, head in heads:
        mask[layer, head] = True
    theirs.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
    tokenizer = get_tokenizer(False)
    frames = len(sound) // 160
    mels = pad_or_trim(log_mel_spectrogram(sound, dims.n_mels, padding=30 * RATE), 3000)
    timed = find_alignment(theirs.eval(), tokenizer, tokenizer.encode(text), mels, frames)
    merge_punctuations(timed, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、")
    times = ((round(float(each.start), 2), round(float(each.end), 2)) for each in timed)
    shown = zip(timed, times, strict=True)
    return [{"text": w.word.strip(), "start": at, "end": to} for w, (at, to) in shown if w.word]
