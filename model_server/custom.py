"""Custom models: what a module named by `--import` registers (docs/how_to/custom_models.md)."""

from __future__ import annotations

from model_server.models.custom import Arrays, CustomMethod, CustomModel, CustomProgram

__all__ = ["Arrays", "CustomMethod", "CustomModel", "CustomProgram"]
