"""Relative Fisher metrics: exact cases, and every closed form against brute force."""

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference, relative
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
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


# ---- the case file

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
    close(
        relative.neuron_rfim(w, x, "prelu", **inputs), tensor(case["expected"]["rfim_pos"]), **CASE
    )
    close(
        relative.neuron_rfim(-w, x, "prelu", **inputs), tensor(case["expected"]["rfim_neg"]), **CASE
    )


def test_case_relu_omega(cases):
    case = cases("rfim")["relu_omega"]
    inputs = dict(case["inputs"])
    t = tensor(inputs.pop("t"))
    close(relative.activate("relu", t, **inputs), tensor(case["expected"]["value"]), **CASE)
    close(relative.slope("relu", t, **inputs), tensor(case["expected"]["derivative"]), **CASE)


def test_case_layer_linear(cases):
    case = cases("rfim")["layer_linear"]
    W, x, sigma = (
        tensor(case["inputs"]["W"]).mT,
        tensor(case["inputs"]["x"]),
        case["inputs"]["sigma"],
    )
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
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)
    ).double()
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
        assert [relative.rank(block) for block in relative.fisher_blocks(G, model)] == expected[
            "fim_blocks"
        ]
        assert [relative.rank(g) for g in relative.network_rfim(model, x, Bernoulli())] == expected[
            "rfim"
        ]


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


# ---- closed forms against brute force

W = tensor([[0.3, -0.2, 0.4], [-0.6, 0.5, -0.1]])
C = tensor([[0.5, 0.2], [-0.3, 0.8]])
X = tensor([[0.5, -1.0], [2.0, 0.3], [-0.7, 0.9]])


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The distance of ``a`` from ``b``, relative to ``b``."""
    return float((a - b).norm() / b.norm())


def brute(
    log_prob, theta: torch.Tensor, answers: torch.Tensor, volume: float, x: torch.Tensor
) -> torch.Tensor:
    """The mean over the rows of ``x`` of the metric summed over all responses."""
    metrics = [
        reference.brute_force_rfim(lambda t, y, x=x: log_prob(t, x, y), theta, answers, volume)
        for x in x
    ]
    return torch.stack(metrics).mean(0)


def brute_layer(W, x, activation, options):
    y, volume = reference.responses(activation, len(W), options.get("sigma", 1.0))
    return brute(
        lambda t, x_i, y: reference.layer_log_prob(t, x_i, y, activation, **options),
        W,
        y,
        volume,
        x,
    )


def brute_two_layers(W, C, x, activation, options):
    y, volume = reference.responses(activation, len(C), options.get("sigma", 1.0))
    return brute(
        lambda t, x_i, y: reference.two_layer_log_prob(t, C, x_i, y, activation, **options),
        W,
        y,
        volume,
        x,
    )


@each
def test_neuron_is_the_sum_over_its_responses(activation, options):
    for w in W:
        right = brute_layer(w[None], X, activation, options)
        metric = relative.neuron_rfim(w, X, activation, **options)
        assert gap(metric, right) < 1e-12
        assert gap(3 * metric, right) > 1  # the sum in the place of the mean
        other_bias = relative.neuron_rfim(w - tensor([0, 0, 2]), X, activation, **options)
        assert activation == "linear" or gap(other_bias, right) > 0.1


@each
def test_layer_is_the_sum_over_its_responses(activation, options):
    blocks = relative.layer_rfim(W, X, activation, **options)
    assert blocks.shape == (2, 3, 3)
    right = brute_layer(W, X, activation, options)
    assert gap(torch.block_diag(*blocks), right) < 1e-12
    for w, block in zip(W, blocks, strict=True):
        close(block, relative.neuron_rfim(w, X, activation, **options))
    transposed = relative.layer_rfim(W.mT.reshape(2, 3), X, activation, **options)
    assert activation == "linear" or gap(torch.block_diag(*transposed), right) > 0.01


def test_softmax_is_the_sum_over_its_responses():
    W = torch.cat([tensor([[0.1, 0.9, -1.2]]), tensor([[0.3, -0.2, 0.4], [-0.6, 0.5, -0.1]])])
    right = brute(
        lambda t, x_i, y: reference.softmax_log_prob(t, x_i, y), W, torch.arange(3), 1.0, X
    )
    G = relative.softmax_rfim(W, X)
    assert gap(G, right) < 1e-12
    assert gap(relative.softmax_rfim(W.mT.contiguous(), X), right) > 0.1
    blocks = relative.layer_rfim(W, X, "sigmoid")  # the layer of three sigmoids
    assert gap(torch.block_diag(*blocks), right) > 0.1


@each
def test_two_layers_are_the_sum_over_their_responses(activation, options):
    G = relative.two_layer_rfim(W, C, X, activation, **options)
    right = brute_two_layers(W, C, X, activation, options)
    assert gap(G, right) < 1e-12
    assert (
        gap(relative.two_layer_rfim(W, C.mT.contiguous(), X, activation, **options), right) > 0.01
    )


def printed_two_layers(W, C, x, activation, options):
    """Eq. 26 as printed: nu in the place of the slope."""
    shape = {key: value for key, value in options.items() if key != "sigma"}
    a = relative.augment(x) @ W.mT
    nu = relative.nu(activation, a, **options)
    outer = relative.nu(activation, relative.activate(activation, a, **shape) @ C.mT, **options)
    K = torch.einsum("li,lj,nl,ni,nj->nij", C, C, outer, nu, nu)
    return sum(
        torch.kron(k, torch.outer(r, r)) for k, r in zip(K, relative.augment(x), strict=True)
    ) / len(x)


@each
def test_printed_two_layers_hold_only_where_nu_is_the_slope(activation, options):
    right = relative.two_layer_rfim(W, C, X, activation, **options)
    error = gap(printed_two_layers(W, C, X, activation, options), right)
    if (activation, options) in [("tanh", {}), ("sigmoid", {}), ("relu", {})]:
        assert error < 1e-14
    else:
        assert error > 0.05


@each
def test_slope_is_the_derivative_and_nu_its_curvature(activation, options):
    shape = {key: value for key, value in options.items() if key != "sigma"}
    # An even count: the rectifier's bend at 0, where it has no derivative, lies between two points.
    a = torch.linspace(-3, 3, 40, dtype=torch.float64).requires_grad_()
    assert float(a.detach().abs().min()) > 0.05
    value = relative.activate(activation, a, **shape)
    close(value, reference.activation(activation, a, **shape))
    close(relative.slope(activation, a.detach(), **shape), torch.autograd.grad(value.sum(), a)[0])
    nu, slope = (
        f(activation, a.detach(), **o) for f, o in ((relative.nu, options), (relative.slope, shape))
    )
    close(
        nu,
        slope if activation in ("tanh", "sigmoid") else slope**2 / options.get("sigma", 1.0) ** 2,
    )


def test_one_example_and_a_batch():
    for activation, options in SHAPES:
        alone = [relative.layer_rfim(W, x, activation, **options) for x in X]
        close(relative.layer_rfim(W, X, activation, **options), sum(alone) / 3)
        alone = [relative.two_layer_rfim(W, C, x, activation, **options) for x in X]
        close(relative.two_layer_rfim(W, C, X, activation, **options), sum(alone) / 3)
    close(relative.softmax_rfim(W, X), sum(relative.softmax_rfim(W, x) for x in X) / 3)


# ---- far out, and in low precision


def test_saturated_neurons_keep_their_digits():
    a = tensor([30.0, -30.0])
    tail = 4 * torch.exp(tensor(-60.0))
    close(relative.nu("tanh", a), tail.expand(2), rtol=1e-14, atol=0)
    assert float((1 - torch.tanh(a) ** 2).max()) == 0  # the printed form has lost them all
    close(relative.nu("sigmoid", a), torch.exp(tensor(-30.0)).expand(2), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@each
def test_far_out(activation, options, dtype):
    a = torch.tensor([-1e4, -50.0, 0.0, 50.0, 1e4], dtype=dtype)
    for widths in [{}, {"omega": 1e-6}, {"omega": 1e-30}]:
        o = options | widths
        nu = relative.nu(activation, a, **o)
        assert nu.dtype == dtype and bool(nu.isfinite().all()) and bool((nu >= 0).all())
        shape = {key: value for key, value in o.items() if key != "sigma"}
        value = relative.activate(activation, a, **shape)
        assert value.dtype == dtype and bool(value.isfinite().all())
        assert bool(relative.slope(activation, a, **shape).isfinite().all())
    wide = relative.layer_rfim(1e4 * W.to(dtype), X.to(dtype), activation, **options)
    assert wide.dtype == dtype and bool(wide.isfinite().all())


def test_narrow_bend_is_the_hard_relu():
    a = tensor([-2.0, -0.01, 0.01, 2.0])
    for f in (relative.nu, relative.activate, relative.slope):
        close(f("relu", a, iota=0.2, omega=1e-6), f("relu", a, iota=0.2), rtol=0, atol=1e-15)
        assert (
            float((f("relu", a, iota=0.2, omega=0.1) - f("relu", a, iota=0.2)).abs().max()) > 1e-3
        )
    zero = tensor(0.0)
    assert float(relative.nu("relu", zero, omega=1e-6)) == 0.25  # not 1/2: the slope is 1/2
    assert float(relative.nu("relu", zero, iota=0.2, omega=1e-6)) == pytest.approx(0.36)
    assert float(relative.slope("relu", zero, iota=0.2)) == 0.2  # hard: as in torch
    x = torch.zeros(1, requires_grad=True)
    assert float(torch.autograd.grad(nn.functional.leaky_relu(x, 0.2), x)[0]) == pytest.approx(0.2)


@each
def test_half_precision_is_computed_in_float32(activation, options):
    for dtype in (torch.float16, torch.bfloat16):
        w, x, c = W.to(dtype), X.to(dtype), C.to(dtype)
        for f, args in ((relative.layer_rfim, (w, x)), (relative.two_layer_rfim, (w, c, x))):
            wide = f(*(t.float() for t in args), activation, **options)
            assert torch.equal(f(*args, activation, **options), wide.to(dtype))
        assert torch.equal(
            relative.softmax_rfim(w, x), relative.softmax_rfim(w.float(), x.float()).to(dtype)
        )


def test_float32_softmax_at_logits_of_fifty():
    W = torch.tensor([[50.0, 0.0], [-50.0, 0.0]])
    G = relative.softmax_rfim(W, torch.tensor([[1.0]]))
    assert float(G[0, 0]) == pytest.approx(float(torch.exp(torch.tensor(-100.0))), rel=1e-3)
    assert bool(relative.softmax_rfim(200 * W, torch.tensor([[1.0]])).isfinite().all())
    for _ in range(3):
        close(G @ torch.ones(4), torch.zeros(4), atol=1e-7, rtol=0)


# ---- networks


def network(seed: int = 0, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 5), nn.LeakyReLU(0.1), nn.Linear(5, 4), nn.ELU(0.7), nn.Linear(4, outputs)
    ).double()


def batch(n: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LIKELIHOODS = [Gaussian(0.5), Bernoulli(), Categorical()]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_network_metrics_layer_by_layer(likelihood):
    model, x = network(), batch()
    first, second, last = relative.network_rfim(model, x, likelihood)
    h1 = model[:2](x).detach()
    weights = [torch.cat([layer.weight, layer.bias[:, None]], 1).detach() for layer in model[::2]]
    close(first, torch.block_diag(*relative.layer_rfim(weights[0], x, "relu", iota=0.1)))
    close(second, torch.block_diag(*relative.layer_rfim(weights[1], h1, "elu", alpha=0.7)))
    G = reference.fisher(model, x, likelihood)
    blocks = relative.fisher_blocks(G, model)
    close(last, blocks[2])  # the last layer: the same
    assert gap(first, blocks[0]) > 0.5 and gap(second, blocks[1]) > 0.5  # before it: others
    sizes = [25, 24, 15]
    starts = [0, 25, 49]
    for layer, block, start, size in zip(model[::2], blocks, starts, sizes, strict=True):
        part = G[start : start + size, start : start + size]
        order = relative.neuron_order(layer)
        close(block, part[order][:, order])
        assert gap(block, part) > 0.1  # without the reordering


def test_metric_does_not_depend_on_later_layers():
    model, x = network(), batch()
    before = relative.network_rfim(model, x, Categorical())
    blocks = relative.fisher_blocks(metrics.fisher(model, x, Categorical()), model)
    with torch.no_grad():
        model[4].weight.mul_(3)
    after = relative.network_rfim(model, x, Categorical())
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
    assert gap(after[2], before[2]) > 0.1
    others = relative.fisher_blocks(metrics.fisher(model, x, Categorical()), model)
    assert gap(others[0], blocks[0]) > 0.5
    wide = nn.Sequential(*model[:2], nn.Linear(5, 50), nn.Tanh(), nn.Linear(50, 1)).double()
    assert torch.equal(relative.network_rfim(wide, x, Bernoulli())[0], before[0])


def test_activation_of():
    assert relative.activation_of(None) == relative.activation_of(nn.Identity()) == ("linear", {})
    assert relative.activation_of(nn.ReLU()) == ("relu", {})
    modules = [nn.Tanh(), nn.Sigmoid(), nn.ReLU(), nn.LeakyReLU(0.2), nn.ELU(0.5), nn.Identity()]
    a = torch.linspace(-2, 2, 10, dtype=torch.float64)
    for module in modules:
        name, options = relative.activation_of(module)
        close(relative.activate(name, a, **options), module(a))
    with pytest.raises(ValueError, match="expected Tanh.*got GELU"):
        relative.activation_of(nn.GELU())


def test_rank():
    G = torch.diag(tensor([1.0, 1e-9, 1e-11, 0.0]))
    assert relative.rank(G) == 2 and relative.rank(G, 1e-12) == 3 and relative.rank(0 * G) == 0
    with pytest.raises(ValueError, match="eigenvalue -1"):
        relative.rank(-G)


def test_parameters_that_require_gradients():
    """Metrics can be differentiated; what returns numbers or a step ignores the graph."""
    w = W[0].clone().requires_grad_()
    trace = relative.neuron_rfim(w, X, "tanh").trace()
    assert float(torch.autograd.grad(trace, w)[0].norm()) > 0.1
    y = tensor([0.0, 1.0, 1.0])
    assert relative.relative_damping(relative.neuron_rfim(w, X, "sigmoid")) > 0
    assert not relative.neuron_step(w, X, y).requires_grad
    assert relative.sharp_ratio(torch.ones(4, requires_grad=True), 0.5) == (1.0, 0.0)
    assert not relative.network_rfim(network(), batch(), Categorical())[0].requires_grad


# ---- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "gelu"}, "activation: expected one of linear, tanh.*'gelu'"),
        ({"sigma": 0.0}, "sigma: expected a finite number > 0"),
        ({"iota": 1.0}, r"iota: expected a number in \[0, 1\), got 1.0"),
        ({"iota": -0.1}, "iota"),
        ({"omega": -1e-3}, "omega: expected a finite number >= 0"),
        ({"alpha": 0.0}, "alpha: expected a finite number > 0"),
        ({"x": torch.ones(2, 3, dtype=torch.float64)}, "x: expected 2 columns, one fewer.*bias.*3"),
        ({"x": torch.ones(2, 2)}, "x: expected the dtype of the weights.*float32"),
        (
            {"x": torch.ones(2, 2, dtype=torch.int64)},
            "x: expected a floating-point tensor, got torch.int64",
        ),
        ({"x": torch.ones(0, 2)}, "x: expected at least one"),
        ({"x": torch.full((2, 2), float("nan"))}, "x: expected finite"),
        ({"x": torch.ones(1, 2, 2)}, "x: expected a matrix"),
        ({"W": torch.ones(3)}, "W: expected a matrix"),
        ({"W": torch.full((2, 3), float("inf"))}, "W: expected finite"),
        ({"W": [[1.0]]}, "W: expected a torch.Tensor"),
    ],
)
def test_bad_input_is_named(changes, message):
    arguments = {"W": W, "x": X, "activation": "relu"} | changes
    with pytest.raises(ValueError, match=message):
        relative.layer_rfim(**arguments)
    with pytest.raises(ValueError, match=message):
        relative.two_layer_rfim(C=C, **arguments)


def test_more_bad_input():
    with pytest.raises(ValueError, match="w: expected the weights of one neuron"):
        relative.neuron_rfim(W, X, "tanh")
    with pytest.raises(ValueError, match="C: expected 2 columns"):
        relative.two_layer_rfim(W, torch.ones(2, 3, dtype=torch.float64), X, "tanh")
    with pytest.raises(ValueError, match="a: expected a floating-point tensor"):
        relative.nu("tanh", torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="a: expected finite"):
        relative.slope("relu", torch.tensor([float("nan")]))
    with pytest.raises(TypeError, match="beta"):
        relative.layer_rfim(W, X, "tanh", beta=1.0)
    with pytest.raises(ValueError, match="y: expected one label an example"):
        relative.neuron_step(W[0], X, torch.ones(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="G . damping I"):
        relative.neuron_step(1e4 * W[0], X[:1], torch.ones(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="costs"):
        relative.sharp_ratio(torch.ones(2, 2), 0.1)
    with pytest.raises(ValueError, match="tau: expected a share"):
        relative.sharp_ratio(torch.ones(2), 1.5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
            "model: expected a linear layer at the end, got Tanh",
        ),
        (nn.Sequential(nn.Linear(4, 2), nn.GELU(), nn.Linear(2, 2)), "got GELU"),
        (nn.Sequential(nn.Tanh(), nn.Linear(4, 2)), "model: expected linear layers with bias"),
        (
            nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Tanh()),
            "model: expected linear layers with bias",
        ),
        (nn.Sequential(nn.Linear(4, 2, bias=False)), "model: expected linear layers with bias"),
        (nn.Sequential(), "model: expected at least one linear layer"),
    ],
)
def test_networks_that_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        relative.network_rfim(model.double(), batch(), Categorical())


def test_what_else_a_network_needs():
    with pytest.raises(ValueError, match="likelihood: expected"):
        relative.network_rfim(network(), batch(), "softmax")
    with pytest.raises(ValueError, match="G: expected 64 rows"):
        relative.fisher_blocks(torch.eye(3), network())


# ---- Extremes and other odd input


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("omega", [1e-300, 1e-40, 1e-30, 1e300])
def test_a_bend_of_any_width(dtype, omega):
    a = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4], dtype=dtype)
    narrow = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0], dtype=dtype)
    expected = narrow if omega < 1 else torch.full_like(a, 0.5)
    assert torch.equal(relative.slope("relu", a, omega=omega), expected)
    assert torch.equal(relative.nu("relu", a, omega=omega), expected.square())
    if omega < 1:
        torch.testing.assert_close(
            relative.activate("relu", a, omega=omega), a.clamp(min=0), rtol=0, atol=1e-29
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_in_half_precision_is_one_in_float32(dtype):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=g).to(dtype)
    y, w = torch.randint(2, (20,), generator=g), torch.tensor([0.1, -0.2, 0.3, 0.0]).to(dtype)
    found = relative.neuron_step(w, x, y)
    assert found.dtype == dtype
    assert torch.equal(found, relative.neuron_step(w.float(), x.float(), y.float()).to(dtype))
    assert torch.equal(found, relative.neuron_step(w, x, y.bool()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": torch.full((4,), torch.nan)}, "y: expected labels 0 or 1"),
        ({"y": torch.full((4,), 2)}, "y: expected labels 0 or 1"),
        ({"y": [0, 1, 0, 1]}, "y: expected one label an example.*got list"),
        ({"y": torch.zeros(4, 1)}, r"y: expected one label.*got shape \(4, 1\)"),
        ({"w": torch.zeros(1, 3)}, "w: expected the weights of one neuron"),
        ({"lr": float("nan")}, "lr: expected a finite number"),
        ({"eps": -1.0}, "eps: expected"),
    ],
)
def test_a_step_from_bad_input(changes, message):
    good = {"w": torch.zeros(3), "x": torch.eye(4)[:, :2], "y": torch.tensor([0.0, 1.0, 0.0, 1.0])}
    relative.neuron_step(**good)
    with pytest.raises(ValueError, match=message):
        relative.neuron_step(**{**good, **changes})


def test_arguments_of_another_kind():
    with pytest.raises(ValueError, match="activation: expected one of"):
        relative.nu(["relu"], torch.ones(2))
    with pytest.raises(ValueError, match="model: expected a Sequential, got Linear"):
        relative.network_rfim(nn.Linear(2, 2), torch.ones(3, 2), Categorical())
