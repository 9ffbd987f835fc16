"""Qwen's language models with image input."""
