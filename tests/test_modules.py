"""L1Norm and ModelNew as nn.Modules: settings, repr, copies, pickles, state."""

import copy
import io
import pickle

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import DTYPES, make_rows

import l1norm

SETTINGS = [
    {},
    {"dim": -1},
    {"dim": (0, 1), "reduction": "sum"},
    {"dim": None, "eps": 0.25},
    {"dim": 0, "reduction": "sum", "eps": 1e-12},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_is_the_function(settings, dtype, device):
    x = make_rows("randn", 4, 30, dtype=dtype, device=device)
    layer = l1norm.L1Norm(**settings)
    assert isinstance(layer, torch.nn.Module)
    y = layer(x)
    assert_same_bits(y, l1norm.l1_norm(x, **settings))
    assert_exact(y, x, **settings)


def test_positional_settings():
    layer = l1norm.L1Norm(0, "sum", 0.5)
    assert (layer.dim, layer.reduction, layer.eps) == (0, "sum", 0.5)


def test_repr_shows_the_settings():
    assert repr(l1norm.L1Norm()).startswith("L1Norm(dim=1")
    text = repr(l1norm.L1Norm(dim=(0, 2), reduction="sum", eps=0.125))
    for part in ("L1Norm(", "dim=(0, 2)", "sum", "0.125"):
        assert part in text
    assert "dim=None" in repr(l1norm.L1Norm(None))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_copies_and_pickles_keep_the_settings(settings, device):
    x = make_rows("randn", 4, 30, device=device)
    layer = l1norm.L1Norm(**settings).eval()
    expected = layer(x)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(layer),
        copy.copy(layer),
        torch.load(saved, weights_only=False),
        *(pickle.loads(pickle.dumps(layer, p)) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    ]
    for other in copies:
        assert type(other) is l1norm.L1Norm
        assert repr(other) == repr(layer)
        assert not other.training
        assert_same_bits(other(x), expected)


def test_model_new_copies_and_pickles(device):
    x = make_rows("randn", 4, 30, device=device)
    model = l1norm.ModelNew(*l1norm.get_init_inputs())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is l1norm.ModelNew
        y = other(x)
        assert_same_bits(y, l1norm.l1_norm(x))
    assert_exact(y, x, rounded=True)


def test_functions_pickle_by_name():
    for function in (l1norm.l1_norm, l1norm.l1_norm_, l1norm.get_inputs):
        assert pickle.loads(pickle.dumps(function)) is function


def test_there_is_no_state():
    for module in (l1norm.L1Norm(), l1norm.ModelNew()):
        assert module.state_dict() == {}
        assert list(module.parameters()) == []
        assert list(module.buffers()) == []
        module.load_state_dict({}, strict=True)


def test_device_dtype_and_mode_change_nothing(device):
    x = make_rows("randn", 4, 30, device=device)
    layer = l1norm.L1Norm()
    expected = layer(x)
    for other in (layer.half(), layer.to(device), layer.train(), layer.eval(), layer.double()):
        assert_same_bits(other(x), expected)


def test_inside_a_model_with_gradients(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), l1norm.L1Norm(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 2)
    ).to(device)
    twin = copy.deepcopy(model)
    x = make_rows("randn", 2, 3, 8, 8, device=device)
    model(x).square().sum().backward()
    h = twin[0](x)
    twin[3]((h / h.abs().mean(1, True)).flatten(1)).square().sum().backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
        assert bool(p.grad.abs().sum() > 0)


def test_public_names():
    assert {"l1_norm", "l1_norm_", "L1Norm", "ModelNew", "get_inputs", "get_init_inputs"} <= set(dir(l1norm))
    for name in l1norm.__all__:
        assert hasattr(l1norm, name)
    assert l1norm.__version__ == l1norm._C.build_info()["version"]
