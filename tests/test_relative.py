"""Relative Fisher metrics: exact cases, and every closed form against brute force."""

import pytest
import torch
from torch import nn

from natcompanion import metrics, relative
from natcompanion.likelihoods import Bernoulli, Categorical
from natcompanion.whitening import Whitener

SHAPES = [
    ("tanh", {}),
    ("sigmoid", {}),
    ("linear", {"sigma": 0.7}),
    ("relu", {}),
    ("relu", {"sigma": 0.5, "iota": 0.3}),
    ("relu", {"omega": 0.5}),
    ("relu", {"sigma": 0.7, "iota": 0.1, "omega": 0.3}),
    ("elu", {}),
    ("elu", {"sigma": 0.7, "alpha": 0.6}),
]
each = pytest.mark.parametrize(("activation", "options"), SHAPES, ids=str)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(a, b, rtol=1e-12, atol=1e-13):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


# --- the case file ----------------------------------------------------------------------------------------------------

CASE = {"rtol": 1e-8, "atol": 1e-10}


@pytest.mark.parametrize("name", ["tanh", "sigm", "relu", "elu"])
def test_case_neuron(cases, name):
    case = cases("rfim")[f"neuron_{name}_pos"]
    inputs, expected = dict(case["inputs"]), case["expected"]
    w, x = tensor(inputs.pop("w")), tensor(inputs.pop("x"))
    a = w @ relative.augment(x)
    assert float(relative.nu(name, a, **inputs)) == pytest.approx(expected["nu"], rel=1e-8)
    close(relative.neuron_rfim(w, x, name, **inputs), tensor(expected["rfim"]), **CASE)


def test_case_prelu_hard(cases):
    case = cases("rfim")["neuron_prelu_hard"]
    inputs = dict(case["inputs"])
    w, x = tensor(inputs.pop("w")), tensor(inputs.pop("x"))
    close(relative.neuron_rfim(w, x, "prelu", **inputs), tensor(case["expected"]["rfim_pos"]), **CASE)
    close(relative.neuron_rfim(-w, x, "prelu", **inputs), tensor(case["expected"]["rfim_neg"]), **CASE)


def test_case_relu_omega(cases):
    case = cases("rfim")["relu_omega"]
    inputs = dict(case["inputs"])
    t = tensor(inputs.pop("t"))
    close(relative.activate("relu", t, **inputs), tensor(case["expected"]["value"]), **CASE)
    close(relative.slope("relu", t, **inputs), tensor(case["expected"]["derivative"]), **CASE)


def test_case_layer_linear(cases):
    case = cases("rfim")["layer_linear"]
    W, x, sigma = tensor(case["inputs"]["W"]).mT, tensor(case["inputs"]["x"]), case["inputs"]["sigma"]
    whole = torch.block_diag(*relative.layer_rfim(W, x, "linear", sigma=sigma))
    block = tensor(case["expected"]["block"])
    assert list(whole.shape) == case["expected"]["shape"]
    assert float(whole.trace()) == pytest.approx(case["expected"]["trace"])
    close(whole, torch.block_diag(block, block, block), **CASE)
    close(relative.linear_rfim(x, sigma=sigma), block, **CASE)


def test_case_layer_softmax(cases):
    case = cases("rfim")["layer_softmax"]
    W, x = tensor(case["inputs"]["W"]).mT, tensor(case["inputs"]["x"])
    G = relative.softmax_rfim(W, x)
    close(G, tensor(case["expected"]["rfim"]), **CASE)
    assert relative.rank(G) == case["expected"]["rank"]
    close(Categorical().mean(W @ relative.augment(x)), tensor(case["expected"]["eta"]), **CASE)


def test_case_two_layers(cases):
    case = cases("rfim")["two_layers_sigm"]
    W, C, x = (tensor(case["inputs"][key]) for key in ("W", "C", "x"))
    rows = relative.augment(x)
    expected = torch.kron(tensor(case["expected"]["coefficient"]), torch.outer(rows, rows))
    close(relative.two_layer_rfim(W.mT, C.mT, x, "sigmoid"), expected, **CASE)


def test_case_ranks(cases):
    case = cases("rfim")["ranks"]
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    with torch.no_grad():
        for layer, linear in enumerate(model[::2], start=1):
            rows, columns = linear.in_features + 1, linear.out_features
            k = torch.arange(rows * columns, dtype=torch.float64).view(rows, columns)
            W = torch.sin(1.7 * k**1.3 + layer)
            linear.weight.copy_(W[:-1].mT)
            linear.bias.copy_(W[-1])
    for n in case["inputs"]["n"]:
        x = torch.cos(2.3 * torch.arange(6 * n, dtype=torch.float64).view(n, 6) ** 1.1)
        G, expected = metrics.fisher(model, x, Bernoulli()), case["expected"][str(n)]
        assert relative.rank(G) == expected["fim"]
        assert [relative.rank(block) for block in relative.fisher_blocks(G, model)] == expected["fim_blocks"]
        assert [relative.rank(g) for g in relative.network_rfim(model, x, Bernoulli())] == expected["rfim"]


def test_case_step(cases):
    case = cases("rfim")["ngd_step"]
    inputs, expected = case["inputs"], case["expected"]
    w, Z, y = (tensor(inputs[key]) for key in ("theta", "Z", "y"))
    x = Z[:, :-1]
    G = relative.neuron_rfim(w, x, "sigmoid")
    close(G, tensor(expected["metric"]), **CASE)
    assert relative.relative_damping(G, inputs["eps_rel"]) == pytest.approx(expected["eps"])
    new = relative.neuron_step(w, x, y, lr=inputs["gamma"], eps=inputs["eps_rel"])
    close(new, tensor(expected["theta_new"]), **CASE)
    gradient = (G + expected["eps"] * torch.eye(3, dtype=torch.float64)) @ (w - new)
    close(gradient, tensor(expected["grad"]), **CASE)


def test_case_feature_whitening(cases):
    case = cases("rfim")["feature_whitening"]
    x = tensor(case["inputs"]["X"])
    whitener = Whitener("zca").fit(x)
    close(whitener.mean, tensor(case["expected"]["a"]), **CASE)
    close(whitener.matrix, tensor(case["expected"]["A"]), **CASE)
    close(relative.augment(whitener.transform(x)), tensor(case["expected"]["Z"]), **CASE)


def test_case_sharp_ratio(cases):
    case = cases("rfim")["sharp_ratio"]
    mean, std = relative.sharp_ratio(tensor(case["inputs"]["costs"]), case["inputs"]["tau"])
    assert (mean, std) == pytest.approx((case["expected"]["mean"], case["expected"]["std"]))
