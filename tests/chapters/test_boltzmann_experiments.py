"""The batched machines of the Boltzmann experiments equal the library's one by one; the quick
presets run.
"""

import itertools
import math

import pytest
import torch

from natcompanion import boltzmann, reference
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _boltzmann as many
from natcompanion.chapters.experiments import _boltzmann_network as layered
from natcompanion.chapters.experiments import boltzmann as paper
from natcompanion.data import mnist


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def split():
    x = (torch.rand(40, 6, generator=rng(1)) < 0.5).float()
    return many.Split(x, torch.arange(40) % 10)


@pytest.fixture
def machines(split):
    out = many.Machines.random(3, split, 4, rng(2))
    out.W += torch.randn(out.W.shape, generator=rng(3))
    out.b += torch.randn(out.b.shape, generator=rng(4))
    return out


def single(machines, s):
    return boltzmann.RBM(machines.W[s], machines.a[s], machines.b[s])


def phases_of(machines, split, seed=5):
    return many.contrast(machines, split.visible, rng(seed))


def close(actual, expected, tolerance=2e-5):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_conditionals_and_errors_equal_the_library(machines, split):
    for s in range(3):
        rbm = single(machines, s)
        classifier = boltzmann.ClassificationRBM.from_machine(rbm, 10)
        close(machines.hidden_mean(split.visible)[s], rbm.hidden_mean(split.visible))
        assert float(machines.errors(split)[s]) == pytest.approx(classifier.error(split.x, split.y))
    h = (torch.rand(3, 7, 4, generator=rng(6)) < 0.5).float()
    mean = machines.visible_mean(h)
    close(mean[1, :, :6], single(machines, 1).visible_mean(h[1])[:, :6])
    close(mean[..., 6:].sum(-1), torch.ones(3, 7))


def test_covariance_norm_equals_enumeration_over_pixels_labels_and_hidden(machines):
    """All 2^6 x 10 x 2^4 states: exactly one label unit is on."""
    W, a, b = (x[0].double() for x in (machines.W, machines.a, machines.b))
    v, h, p, _ = reference.rbm_joint(W[:6], a[:6], b)
    rows_v, rows_h, weight = [], [], []
    for y in range(10):
        label = torch.eye(10, dtype=torch.float64)[y].expand(len(v), 10)
        rows_v.append(torch.cat([v, label], 1)), rows_h.append(h)
        weight.append(p * torch.exp(a[6 + y] + h @ W[6 + y]))
    v, h, p = torch.cat(rows_v), torch.cat(rows_h), torch.cat(weight)
    p = p / p.sum()
    C = (p[:, None] * (v - p @ v)).mT @ (h - p @ h)
    close(machines.covariance_norms()[0].double(), C.square().sum())
    binary_labels = boltzmann.CovariancePenalty().value(boltzmann.RBM(W, a, b))
    assert abs(float(binary_labels - C.square().sum())) > 1e-4


def test_samples_have_their_means_and_one_label(machines):
    h = torch.ones(3, 20_000, 4)
    mean = machines.visible_mean(h)
    v = machines.sample_visible(mean, rng(7))
    assert (v.mean(1) - mean.mean(1)).abs().max() < 0.02
    assert torch.equal(v[..., 6:].sum(-1), torch.ones(3, 20_000))


def test_contrast_is_the_difference_of_statistics(machines, split):
    phases = phases_of(machines, split)
    dW, da, db = phases.gradient()
    for s in range(3):
        flat = torch.cat([da[s], db[s], dW[s].reshape(-1)])
        close(flat, single(machines, s).contrast(split.visible, phases.v_model[s]))


@pytest.mark.parametrize("rule", ["printed", "product"])
def test_moving_difference_equals_the_paper_penalty(machines, split, rule):
    batched = many.MovingDifference(3, rule)
    ones = [boltzmann.PaperPenalty(3, rule=rule) for _ in range(3)]
    for step in range(7):
        now = many.moments(phases_of(machines, split, step), "probabilities", rng(step))
        found = batched.update(now)
        for s in range(3):
            close(found[s], ones[s].update(boltzmann.Moments(*(x[s] for x in now))), 1e-6)
    other = many.moments(phases_of(machines, split, 1), "states", rng(1))
    assert (
        other[2] - many.moments(phases_of(machines, split, 1), "probabilities", rng(1))[2]
    ).abs().max() > 1e-3


def test_exact_rule_equals_the_sampled_gradient(machines, split):
    phases = phases_of(machines, split)
    eW, ea, eb = many.exact_rule(phases, rng(8))
    h = torch.rand(phases.q_model.shape, generator=rng(8)).lt_(phases.q_model)
    for s in range(3):
        flat = torch.cat([ea[s], eb[s], eW[s].reshape(-1)])
        close(flat, boltzmann.sampled_penalty_gradient(phases.v_model[s], h[s]))
    C = many.sample_covariance(phases)
    close(C[0], boltzmann.sample_moments(phases.v_model[0], phases.q_model[0]).covariance)


def test_sample_covariance_has_the_right_mean(machines, split):
    """Over many reconstructions it is cov(v, h) of binary states; with E[v|h] in place of v it is
    too small.
    """
    wide = many.Split(split.x.repeat(200, 1), split.y.repeat(200))
    phases = phases_of(machines, wide)
    h = torch.rand(phases.q_model.shape, generator=rng(11)).lt_(phases.q_model)
    C, states = (
        many.sample_covariance(phases)[0],
        boltzmann.sample_moments(phases.v_model[0], h[0]).covariance,
    )
    means = boltzmann.sample_moments(phases.v_mean[0], phases.q_model[0]).covariance
    assert (C - states).abs().max() < 0.02
    assert (
        float((means * states).sum() / states.square().sum())
        < 0.9
        < float((C * states).sum() / states.square().sum())
    )


def test_decorrelation_equals_autograd(machines, split):
    phases = phases_of(machines, split)
    gW, gb = many.decorrelation(phases)
    W, b = machines.W[1].clone().requires_grad_(), machines.b[1].clone().requires_grad_()
    q = torch.sigmoid(split.visible @ W + b)
    C = torch.cov(q.mT, correction=0)
    loss = C.square().sum() - C.diagonal().square().sum()
    expected = torch.autograd.grad(loss, [W, b])
    close(gW[1], expected[0])
    close(gb[1], expected[1])


def test_search_spaces_are_of_equal_size():
    space = paper.search_space()
    assert {len(configurations) for configurations in space.values()} == {16}
    assert len(paper.CELLS) == 35


def test_a_gamma_of_zero_is_plain_sgd():
    """All methods at strength zero train alike in law; with equal random numbers a single method
    equals itself.
    """
    settings, data = paper.HeldOut(epochs=1), many.digits(5, 0)
    zero = [{"lr": 0.5}, {"lr": 0.5, "decay": 0.0, "exact": 0.0}]
    plain = paper.train_all(settings, data, zero, rng(9))
    again = paper.train_all(settings, data, [{"lr": 0.5}] * 2, rng(9))
    assert torch.equal(plain.W, again.W)
    for strength in (
        {"decay": 0.3},
        {"exact": 300.0},
        {"natural": 0.3},
        {"hidden": 300.0},
        {"paper": (0.0, 0.01)},
    ):
        other = paper.train_all(settings, data, [{"lr": 0.5, **strength}, {"lr": 0.5}], rng(9))
        assert (other.W[0] - plain.W[0]).abs().max() > 1e-4
        assert torch.equal(other.W[1], plain.W[1])


def test_the_largest_step_of_the_search_does_not_learn():
    """So that a choice below it is no choice of the edge; at 1 the same machine learns."""
    data, settings = many.digits(7, 0), paper.HeldOut(epochs=5)
    found = paper.train_all(settings, data, [{"lr": max(paper.RATES)}, {"lr": 1.0}], rng(13))
    bad, good = found.errors(data["validation"]).tolist()
    assert bad > 0.85 and good < 0.75


def test_softmax_on_hidden_units_equals_the_library(machines, split):
    """The weights in float64: in float32 an objective with l2 = 1e-3 fixes two digits of them."""
    plain = many.Machines(
        machines.W[:, :6].double(), machines.a[:, :6].double(), machines.b.double(), 6
    )
    split = many.Split(split.x.double(), split.y, labels=False)
    classifier = many.SoftmaxOnHidden(3, 4, steps=300)
    classifier.weights, classifier.bias = classifier.weights.double(), classifier.bias.double()
    classifier.fit(plain, split)
    for s in range(3):
        q = single(plain, s).hidden_mean(split.x)
        weights, bias = boltzmann.fit_softmax(q, split.y, 10, l2=1e-3, steps=300)
        close(classifier.weights[s], weights, 5e-3)  # L-BFGS stops where it gains less than 1e-9
        error = float(((q @ weights + bias).argmax(1) != split.y).double().mean())
        assert float(classifier.errors(plain, split)[s]) == pytest.approx(error)
        other, _ = boltzmann.fit_softmax(q, split.y, 10, l2=1.2e-3, steps=300)
        assert float((other - weights).abs().max()) > 0.05, "the regularization shows"


def test_softmax_on_hidden_units_is_as_low_in_float32(machines, split):
    plain = many.Machines(machines.W[:, :6], machines.a[:, :6], machines.b, 6)
    split = many.Split(split.x, split.y, labels=False)
    classifier = many.SoftmaxOnHidden(3, 4, steps=300).fit(plain, split)

    def objective(q, weights, bias):
        nll = torch.nn.functional.cross_entropy(q @ weights + bias, split.y)
        return float(nll + 1e-3 / 2 * weights.square().sum())

    for s in range(3):
        q = single(plain, s).hidden_mean(split.x).double()
        best = objective(q, *boltzmann.fit_softmax(q, split.y, 10, l2=1e-3, steps=300))
        found = classifier.weights[s].double(), classifier.bias[s].double()
        assert abs(objective(q, *found) - best) < 1e-4
        assert objective(q, 0.9 * found[0], found[1]) > best + 1e-3


def test_machines_without_label_units(machines, split):
    """Pixels alone: samples, moments and the covariance norm have no label part."""
    plain = many.Machines(machines.W[:, :6], machines.a[:, :6], machines.b, 6)
    phases = many.contrast(plain, split.x, rng(14))
    assert phases.v_model.shape == (3, 40, 6)
    close(plain.covariance_norms()[1], boltzmann.CovariancePenalty().value(single(plain, 1)))


def test_a_cap_on_gamma_holds_and_a_fixed_gamma_stays():
    options = {"epochs": 1, "every": 1, "size": 4}
    capped = experiments.run("boltzmann_thresholds", gamma=1.0, cap=0.5, **options)
    free = experiments.run("boltzmann_thresholds", gamma=1.0, **options)
    low, high = (min(gamma[-1] for gamma in found["gamma"]) for found in (capped, free))
    assert low == pytest.approx(0.5 * 0.9**29, rel=1e-3) and high == pytest.approx(
        0.9**30, rel=1e-3
    )
    held = experiments.run("boltzmann_held", **options)
    assert held["gamma"] == [[pytest.approx(g)] * 2 for g in held["gammas"]]
    still = held["gammas"].index(1.0)
    assert held["kept_epochs"][still] == 0 < held["kept_epochs"][0] == 1


SMALL = {
    "boltzmann_thresholds": {"epochs": 1, "every": 1, "size": 4},
    "boltzmann_held": {"epochs": 1, "every": 1, "size": 4},
    "boltzmann_learning": {"steps": 3, "size": 5, "hidden": 4},
    "boltzmann_rivals": {"steps": 3, "size": 5, "hidden": 4},
    "boltzmann_geometry": {"steps": 3, "points": (0, 2), "size": 5, "hidden": 4},
    "boltzmann_assumption": {"train_steps": 3, "steps": 4, "size": 4, "hidden": 3},
    "boltzmann_proxy": {"epochs": 1, "size": 4, "hidden": 4},
    "boltzmann_heldout": {"epochs": 1, "size": 4, "final_inits": 1},
    "boltzmann_edge": {"epochs": 1, "size": 4},
    "boltzmann_whitened": {"epochs": 1, "size": 5, "hidden": 4},
    "boltzmann_network": {"method": "hidden", "gamma": 0.1, "updates": 2, "every": 1},
    "boltzmann_projections": {"draws": 3, "ks": (1, 10), "size": 5},
}


def test_every_experiment_is_listed_here():
    assert {name for name in experiments.names() if name.startswith("boltzmann")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_small_runs_repeat(name):
    first, second = (experiments.run(name, **SMALL[name]) for _ in range(2))
    timing = {"clock", "seconds_to_target"}
    assert {k: v for k, v in first.values.items() if k not in timing} == {
        k: v for k, v in second.values.items() if k not in timing
    }


RULES = list(itertools.product(["printed", "product", "exact", "natural"], [False, True]))


@pytest.mark.parametrize("rule,additive", RULES)
def test_rules_differ_from_plain_sgd(rule, additive):
    options = {"epochs": 1, "every": 1, "size": 4, "additive": additive, "gamma": 1.0, "lr": 1.0}
    found = experiments.run("boltzmann_thresholds", rule=rule, **options)
    plain = experiments.run("boltzmann_thresholds", rule="none", **options)
    assert found["filters"] != plain["filters"] and len(found["final_test"]) == 35


@pytest.mark.parametrize(
    "method", ["sgd", "centred", "diagonal", "whitened", "easi", "prong", "natural"]
)
def test_every_direction_goes_uphill(method):
    X = paper.binary_digits(5, 0)
    rbm = paper.data_start(X, 4, rng(10), 0.5)
    direction = paper.directions(rbm, 1e-3, 0.01)[method](rbm, rbm.gradient(X))
    gain = float(
        rbm.moved(1e-4 * direction).log_likelihood(X).mean() - rbm.log_likelihood(X).mean()
    )
    assert gain == pytest.approx(1e-4 * float(direction @ rbm.gradient(X)), rel=0.05)
    assert gain > 0


def test_diagonal_and_natural_directions_equal_the_library():
    X = paper.binary_digits(4, 0)
    rbm = paper.data_start(X, 3, rng(12), 0.5)
    ways, gradient = paper.directions(rbm, 1e-3, 0.01), rbm.gradient(X)
    for name, structure in (("diagonal", "diagonal"), ("natural", "full")):
        close(ways[name](rbm, gradient), rbm.natural_gradient(X, 1e-3, structure=structure), 1e-8)


def test_divergence_is_reported_not_raised():
    result = experiments.run("boltzmann_learning", method="sgd", lr=1e4, steps=20, size=4, hidden=3)
    assert result["diverged"]


@pytest.mark.parametrize("method", ["sgd", "natural", "adamw", "muon"])
def test_a_rivals_first_steps_are_those_written_out(method):
    """Two steps of the experiment's move, beside the update rules by hand."""
    X = paper.binary_digits(4, 0)
    rbm = paper.data_start(X, 3, rng(12), 0.5)
    settings = paper.Rivals(method=method, lr=0.1, momentum=0.5)
    move, gradients, points = paper._mover(settings, rbm), [], [rbm]
    for _ in range(2):
        gradients.append(points[-1].gradient(X))
        points.append(move(points[-1], gradients[-1]))
    first, second = (b.vector() - a.vector() for a, b in itertools.pairwise(points))
    if method in ("sgd", "natural"):
        way = paper.directions(rbm, settings.damping, settings.eps)[method]
        d = [way(point, g) for point, g in zip(points, gradients, strict=False)]
        close(first, 0.1 * d[0], 1e-12)
        close(second, 0.1 * (0.5 * d[0] + d[1]), 1e-12)
    elif method == "adamw":
        close(first, 0.1 * gradients[0] / (gradients[0].abs() + 1e-8), 1e-12)
    else:  # the biases are AdamW's; the step of the weights has nearly equal singular values
        biases = rbm.visible + rbm.hidden
        g = gradients[0][:biases]
        close(first[:biases], 0.1 * g / (g.abs() + 1e-8), 1e-12)
        values = torch.linalg.svdvals(first[biases:].reshape(rbm.W.shape))
        assert values[-1] > 0.5 * values[0]
        assert float(first[biases:] @ gradients[0][biases:]) > 0


def test_a_rival_stops_at_the_target():
    options = {"method": "sgd", "lr": 0.5, "momentum": 0.9, "size": 4, "hidden": 3}
    near = experiments.run("boltzmann_rivals", steps=250, target=-4.0, **options)
    far = experiments.run("boltzmann_rivals", steps=20, target=-1.0, **options)
    assert 0 < near["steps_to_target"] < 250 and near["best"] >= -4.0
    assert far["steps_to_target"] is None and far["best"] < -1.0


def test_batched_gammas_equal_the_library():
    P = torch.randn(4, 6, 5, generator=rng(20)) * 0.01
    v, p = torch.tensor([0.001, 0.01, 0.01, 0.2]), torch.tensor([0.05, 0.3, 0.5, 0.1])
    gamma = torch.tensor([0.01, 1.0, 0.5, 1.05e-5])
    found = many.next_gamma(gamma, P, v, p)
    for s in range(4):
        controller = boltzmann.ThresholdController(float(v[s]), float(p[s]), gamma=float(gamma[s]))
        assert float(found[s]) == pytest.approx(controller.update(P[s].double()), rel=1e-6)
    assert float(many.next_gamma(gamma, P, v, p, 0.4).max()) == pytest.approx(0.4)


def test_with_a_margin_binary_digits_do_not_depend_on_rounding(monkeypatch):
    """Without one, a change in the last bit of the grey values turns pixels on."""
    grey, y = mnist(size=7, split="train", seed=0, dtype=torch.float64)
    found = {0.0: [], 1e-9: []}
    for rounding in (-1e-15, 1e-15):
        monkeypatch.setattr(paper, "mnist", lambda change=rounding, **_: (grey + change, y))
        for margin, digits in found.items():
            digits.append(paper.binary_digits(7, 0, margin=margin))
    assert torch.equal(*found[1e-9])
    assert 0 < (found[0.0][0] != found[0.0][1]).sum() < 20
    assert (found[0.0][0] == found[1e-9][0]).double().mean() > 0.9999


# ---- Networks


@pytest.mark.parametrize("problem", ["layers", "convolution"])
def test_the_objective_of_a_network_is_cross_entropy_and_covariances(problem):
    """Against loops over examples; the plain objective is cross-entropy, whatever gamma is."""
    model = layered.network(problem, 8, torch.Generator().manual_seed(0)).double()
    x = torch.rand(6, *((64,) if problem == "layers" else (1, 8, 8)), dtype=torch.float64)
    t = torch.tensor([0, 1, 2, 3, 4, 5])
    parts = [x, model[:2](x), model[:4](x)]
    flat = [part.flatten(1) - part.flatten(1).mean(0) for part in parts]
    plain = -model(x).log_softmax(1)[range(6), t].mean()

    def norm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return sum(torch.outer(p, q) for p, q in zip(a, b, strict=True)).div(6).square().sum()

    expected = {
        "plain": plain,
        "hidden": 0.9 * plain + 0.1 * (norm(flat[1], flat[1]) + norm(flat[2], flat[2])),
        "visible": 0.9 * plain + 0.1 * (norm(flat[0], flat[1]) + norm(flat[1], flat[2])),
    }
    for method, value in expected.items():
        torch.testing.assert_close(layered.objective(model, method, 0.1)(x, t), value)
    assert len({round(value.item(), 6) for value in expected.values()}) == 3


def test_the_correlation_of_hidden_units_leaves_out_their_variances():
    """Two units that are the same, and two that are not correlated: 1 and 0, and so a half."""
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    y = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])

    class Given(torch.nn.Module):
        def __init__(self, h: torch.Tensor) -> None:
            super().__init__()
            self.h = h

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.h

    same = torch.nn.Identity()
    model = torch.nn.Sequential(same, Given(3 * x), same, Given(y), same)
    assert layered.correlation(model, x) == pytest.approx(0.5)
    still = torch.nn.Sequential(same, Given(y[:, :1]), same, Given(torch.ones(4, 2)), same)
    assert math.isnan(layered.correlation(still, x))


def test_a_network_run_stops_at_its_target():
    found = experiments.run("boltzmann_network", "quick", 0, target=1.5, updates=200).values
    assert found["train"][-1] <= 1.5 < min(found["train"][:-1])
    assert found["steps_to_target"] == 5 * (len(found["train"]) - 1)
    late = experiments.run("boltzmann_network", "quick", 0).values
    assert late["steps_to_target"] is None and len(late["train"]) == 5
    again = experiments.run("boltzmann_network", "quick", 0, method="hidden", gamma=0.0).values
    assert again["train"] == pytest.approx(late["train"], rel=1e-4)
