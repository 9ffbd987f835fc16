"""Qwen's language models with image or audio input."""
