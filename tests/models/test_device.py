"""Devices and precisions, as they are on machines other than this one as well."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diwa.errors import SpecError
from diwa.models.device import Compute


def machine(
    monkeypatch: pytest.MonkeyPatch,
    *,
    gpus: int = 0,
    gpu_bf16: bool = False,
    mps: bool = False,
    cpu: dict[str, Any] | None = None,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    def supported(including_emulation: bool = True) -> bool:
        return gpu_bf16 or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu or {}, raising=False)


class TestDevice:
    @pytest.mark.parametrize(
        ("here", "chosen"),
        [
            ({}, "cpu"),
            ({"gpus": 1}, "cuda"),
            ({"gpus": 2, "mps": True}, "cuda"),
            ({"mps": True}, "mps"),
        ],
    )
    def test_the_best_there_is(
        self, monkeypatch: pytest.MonkeyPatch, here: dict[str, Any], chosen: str
    ) -> None:
        machine(monkeypatch, **here)
        assert Compute.choose().device == torch.device(chosen)

    @pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1", "cpu", "mps"])
    def test_one_that_is_there(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        machine(monkeypatch, gpus=2, mps=True)
        assert Compute.choose(name).device == torch.device(name)

    @pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "xpu", "meta"])
    def test_one_that_is_not(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        machine(monkeypatch)
        with pytest.raises(SpecError) as caught:
            Compute.choose(name)
        assert str(caught.value) == (
            f"device {name!r}: not on this machine; pass --device auto or cpu"
        )

    def test_one_too_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        machine(monkeypatch, gpus=2)
        with pytest.raises(SpecError, match="device 'cuda:2': not on this machine"):
            Compute.choose("cuda:2")

    @pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "cuda:-1", "CPU!"])
    def test_one_that_does_not_exist(self, name: str) -> None:
        with pytest.raises(SpecError, match=r"choose auto, cpu, cuda, cuda:1") as caught:
            Compute.choose(name)
        assert str(caught.value).startswith(f"device {name!r};")


class TestPrecision:
    @pytest.mark.parametrize(
        ("here", "device", "chosen"),
        [
            ({}, "cpu", "fp32"),
            ({"cpu": {"avx512_f": True, "amx_bf16": False}}, "cpu", "fp32"),
            ({"cpu": {"amx_bf16": True}}, "cpu", "bf16"),
            ({"cpu": {"avx512_bf16": True}}, "cpu", "bf16"),
            ({"gpus": 1, "gpu_bf16": True}, "cuda", "bf16"),
            # It would be emulated, which is slower than float32.
            ({"gpus": 1, "gpu_bf16": False, "cpu": {"amx_bf16": True}}, "cuda", "fp32"),
            ({"mps": True, "cpu": {"bf16": True}}, "mps", "fp32"),
        ],
    )
    def test_bf16_where_the_hardware_has_it(
        self, monkeypatch: pytest.MonkeyPatch, here: dict[str, Any], device: str, chosen: str
    ) -> None:
        machine(monkeypatch, **here)
        assert Compute.choose(device).precision == chosen

    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_what_is_asked_for(self, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
        machine(monkeypatch)
        assert Compute.choose("cpu", precision).precision == precision

    @pytest.mark.parametrize("precision", ["fp16", "", "FP32", "float32"])
    def test_what_there_is_not(self, precision: str) -> None:
        with pytest.raises(SpecError) as caught:
            Compute.choose("cpu", precision)
        assert str(caught.value) == f"precision {precision!r}; choose auto, fp32, bf16"

    @pytest.mark.parametrize(("has", "precision"), [(True, "bf16"), (False, "fp32")])
    def test_an_old_torch_is_asked_in_its_own_way(
        self, has: bool, precision: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has, raising=False)
        assert Compute.choose("cpu").precision == precision

    @pytest.mark.parametrize(
        ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
    )
    def test_is_what_networks_run_in(self, precision: str, dtype: torch.dtype) -> None:
        layer = torch.nn.Linear(3, 2)
        with Compute.choose("cpu", precision).autocast():
            assert layer(torch.zeros(1, 3)).dtype == dtype
        assert layer.weight.dtype == torch.float32
        assert layer(torch.zeros(1, 3)).dtype == torch.float32


def test_pixels_become_channels_last_and_stay_the_same() -> None:
    batch = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
    placed = Compute.choose("cpu", "fp32").pixels(batch)
    assert torch.equal(placed, batch)
    assert placed.dtype == torch.uint8
    assert placed.is_contiguous(memory_format=torch.channels_last)
    assert not batch.is_contiguous(memory_format=torch.channels_last)
