"""Linear layers over packed weights, in families that aren't fused."""

from pathlib import Path

import pytest
import torch
from tiny_models import save_model
from torch import nn

from engine.config import EngineConfig
from engine.kernels import Kernels, load_kernels
from engine.models import LoadedModel, load_model, loading
from engine.models.hf import load_from_folder
from engine.models.packed import PackedLinear, pack_linears


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return load_kernels()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_is_the_plain_one(kernels: Kernels, dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(96, 35, bias=bias).to(dtype)
    layer = PackedLinear(kernels, linear)
    for shape in ((0, 96), (1, 96), (2, 7, 96)):
        states = torch.randn(shape).to(dtype)
        found = layer(states)
        assert found.dtype is dtype
        torch.testing.assert_close(found, linear(states))
    transposed = torch.randn(96, 5).to(dtype).T
    torch.testing.assert_close(layer(transposed), linear(transposed))


def test_only_shapes_that_gain_are_packed_and_each_is_timed_once(
    tmp_path: Path, kernels: Kernels
) -> None:
    network, _ = load_from_folder(EngineConfig(model=save_model(tmp_path, "gemma2", head_dim=16)))
    linears = [child for child in network.modules() if type(child) is nn.Linear]
    asked: list[tuple[int, int]] = []

    def faster(ours: PackedLinear, plain: nn.Linear) -> bool:
        asked.append((plain.out_features, plain.in_features))
        return plain.out_features != plain.in_features

    replaced = pack_linears(network, kernels, faster)
    left = [child for child in network.modules() if type(child) is nn.Linear]
    assert len(asked) == len(set(asked)) > 1
    assert 0 < replaced == len(linears) - len(left)
    assert all(linear.out_features == linear.in_features for linear in left)


def test_a_family_that_looks_into_its_weights_is_loaded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forward = PackedLinear.forward

    def call(self: PackedLinear, states: torch.Tensor) -> torch.Tensor:
        if states.ndim == 3:  # within the model
            raise AttributeError("'PackedLinear' object has no attribute 'weight'")
        return forward(self, states)

    monkeypatch.setattr(loading, "is_faster", lambda *_: True)
    monkeypatch.setattr(PackedLinear, "forward", call)
    save_model(tmp_path, "gemma2", head_dim=16)
    model = load_model(EngineConfig(model=tmp_path, dtype="float32"))
    assert isinstance(model, LoadedModel)
    assert not any(isinstance(child, PackedLinear) for child in model.network.modules())
    assert "runs without packed layers" in caplog.text
