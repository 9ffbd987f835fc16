"""Qwen's language models with eyes."""
