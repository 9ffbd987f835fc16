"""Qwen's language models with eyes or ears."""
