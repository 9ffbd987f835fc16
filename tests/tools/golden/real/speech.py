"""speech.json: what transformers hears in the passage with the real whisper-tiny.en.

It holds start and end, in seconds, and text of each segment, decoded greedily.
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
    extract = transformers.WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)
    sound = passage(recordings(sounds))
    features = extract(sound, sampling_rate=RATE, return_tensors="pt").input_features
    said = model.eval().generate(features, return_timestamps=True, return_segments=True)
    held = {
        "how": common.how("real", "speech", "float32"),
        "segments": [_segment(tokenizer, each) for each in said["segments"][0]],
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
