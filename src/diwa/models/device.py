"""What networks are computed on, and how precisely."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from diwa.errors import SpecError

PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Compute:
    """A device and a precision.

    Args:
        device: where.
        precision: "fp32" or "bf16"; the weights are float32 either way.

    Example:
        >>> Compute.choose("cpu", "fp32")
        Compute(device=device(type='cpu'), precision='fp32')
    """

    device: torch.device
    precision: str

    @classmethod
    def choose(cls, device: str = "auto", precision: str = "auto") -> Compute:
        """Resolves "auto": the best device there is, bf16 where its hardware has it.

        Raises:
            SpecError: for a device or precision that is not to be had.
        """
        where = _device(device)
        if precision not in PRECISIONS:
            raise SpecError(f"precision {precision!r}", remedy=f"choose {', '.join(PRECISIONS)}")
        if precision == "auto":
            precision = "bf16" if _has_bf16(where) else "fp32"
        return cls(where, precision)

    def autocast(self) -> AbstractContextManager[object]:
        """The context to run a network in."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def pixels(self, batch: torch.Tensor) -> torch.Tensor:
        """A batch of images on the device, channels-last."""
        return batch.to(
            self.device, memory_format=torch.channels_last, non_blocking=batch.is_pinned()
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SpecError(
            f"device {name!r}", remedy="choose auto, cpu, cuda, cuda:1 (and so on) or mps"
        ) from error
    there = {
        "cpu": True,
        "cuda": (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type):
        raise SpecError(f"device {name!r}: not on this machine", remedy="pass --device auto or cpu")
    return device


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    if not hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu._is_avx512_bf16_supported()
    known = torch.cpu.get_capabilities()
    return any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
