"""Decides which operations of a model the native CPU kernels serve; XLA serves all others.

They serve models on one CPU device, if the library is there. Attention needs heads and pages of
certain sizes; products, norms and overwrites of pages are native in every program whose attention
kernel is, and `engine/sampling` leaves to XLA the settings that the native sampler does not have.
"""

from __future__ import annotations

from model_server.kernels.cpu import native
from model_server.kernels.cpu.attention import CpuAttention, supports_heads
from model_server.kernels.cpu.attention import overwrite as native_overwrite
from model_server.kernels.paged import Kernel, PageReading
from model_server.kernels.pages import Overwrite, overwrite
from model_server.kernels.xla import READING


def is_native(platform: str, devices: int) -> bool:
    """Return True if programs on so many devices of a platform have native kernels."""
    return platform == "cpu" and devices == 1 and native.available()


def attends_natively(platform: str, devices: int, key_dim: int, value_dim: int) -> bool:
    """Return True if attention with heads of these sizes is native as well."""
    return is_native(platform, devices) and supports_heads(key_dim, value_dim)


def described(platform: str, devices: int) -> str:
    """Return the instruction set and threads in use, or why XLA's kernels are; "": not on CPUs."""
    if platform != "cpu":
        return ""
    if devices > 1:
        return f"XLA's: the model's mesh has {devices} devices"
    return native.described()


def has_native(kernel: Kernel) -> bool:
    """Return True if a program with this attention kernel multiplies and samples natively."""
    return kernel == CpuAttention()


def reading_of(kernel: Kernel) -> PageReading:
    """Return what reads pages with transposed keys in a program with this attention kernel."""
    return kernel if isinstance(kernel, CpuAttention) else READING


def overwrite_of(kernel: Kernel) -> Overwrite:
    """Return the function with which a program with this kernel overwrites pages of the pool."""
    return native_overwrite if has_native(kernel) else overwrite
