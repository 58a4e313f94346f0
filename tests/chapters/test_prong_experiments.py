"""The PRONG experiments: their parts against other routes, and small runs of each."""

import math
from typing import ClassVar

import pytest
import torch
from torch import nn

from natcompanion import layers, metrics
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _prong_convolutional as maps
from natcompanion.chapters.experiments import _prong_fisher as fisher
from natcompanion.chapters.experiments import _prong_training as training
from natcompanion.chapters.experiments import prong
from natcompanion.likelihoods import Categorical

SMALL = {
    "prong_autoencoder": {"updates": 8, "short": 4, "every": 4, "repeats": 2},
    "prong_sensitivity": {"updates": 4, "every": 2},
    "prong_backward": {"updates": 4},
    "prong_conditioning": {"images": 200, "eps": (1e-6, 1e-2)},
    "prong_conditioning_during": {"images": 200, "updates": 4, "every": 2},
    "prong_conditioning_equal": {"images": 50, "updates": 2, "every": 2, "widths": (100, 4, 3, 10)},
    "prong_alignment": {"images": 100, "before": 2, "lags": (0, 1)},
    "prong_convolutional": {
        "data": "digits",
        "train": 100,
        "validation": 50,
        "test": 50,
        "updates": 4,
        "short": 2,
        "every": 2,
        "repeats": 1,
    },
    "prong_time": {"updates": 1, "repeats": 1},
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- The auto-encoder


def test_autoencoder_is_mirrored_with_a_linear_code():
    model = training.autoencoder((9, 6, 4, 2), batch_norm=True)
    sizes = [m.weight.shape[::-1] for m in model if isinstance(m, nn.Linear)]
    assert [tuple(s) for s in sizes] == [(9, 6), (6, 4), (4, 2), (2, 4), (4, 6), (6, 9)]
    kinds = [type(m).__name__ for m in model]
    assert kinds.count("BatchNorm1d") == 5 and kinds.count("Sigmoid") == 4
    assert kinds[kinds.index("Linear", 6) + 1 :][:2] == ["BatchNorm1d", "Linear"]  # the code
    assert kinds[-1] == "Linear"


def test_whitened_start_gives_every_layer_the_scale_of_white_inputs():
    x = training.images(7)[0]
    model = training.initialize(
        training.autoencoder((49, 30, 10)), "whitened", x, 1e-4, generator()
    )
    spread, h = [], x
    for layer in model:
        h = layer(h).detach()
        if isinstance(layer, nn.Linear):
            spread.append(float(h.var(0).mean()))
            assert float(h.mean(0).abs().max()) < 1e-3
    assert all(0.5 < s < 1.5 for s in spread)
    fan_in = training.initialize(training.autoencoder((49, 30, 10)), "fan-in", x, 1e-4, generator())
    assert float(fan_in[:3](x).detach().var(0).mean()) < 0.1 * spread[1], (
        "the plain start shrinks the code"
    )


def test_reconstruction_error_by_hand_leaves_batch_norm_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
        x = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        assert training.reconstruction_error(model, x) == pytest.approx((0.25 + 0.25 + 0 + 0) / 2)
    assert model.training and int(model[1].num_batches_tracked) == 0


class Fake:
    """A run whose score is looked up by its step size and whether it is finished."""

    SCORES: ClassVar[dict] = {
        1.0: (3, 1),
        2.0: (2, 5),
        3.0: (9, 0),
    }  # the last would win, but starts too slowly

    def __init__(self, choice: training.Choice, stream: int) -> None:
        self.choice, self.stream, self.updates = choice, stream, 0

    def train(self, updates: int) -> "Fake":
        self.updates += updates
        return self

    def score(self) -> float:
        return self.SCORES[self.choice.rate][self.updates > 5]


@pytest.mark.parametrize("rates", [(1.0, 2.0, 3.0), (2.0,)])
def test_search_finishes_the_best_and_says_what_it_tried(rates):
    choices = training.choices_of(rates, (0.0,), (0.5,))
    best, tried, runs = training.search(
        Fake,
        choices,
        Fake.score,
        lambda run: {"stream": run.train(9).stream},
        short=5,
        kept=2,
        repeats=3,
    )
    assert best == training.Choice(1.0 if len(rates) > 1 else 2.0, 0.0, 0.5)
    assert [entry["full"] for entry in tried] == ([5, 1, None] if len(rates) > 1 else [5])
    assert runs == [{"stream": 1}, {"stream": 2}, {"stream": 3}], (
        "not the initialization of the short runs"
    )


def test_methods_search_as_many_settings():
    for settings, second in (
        (prong.AutoEncoder(**prong.CHAPTER), prong.SECOND),
        (prong.Convolutional(), prong.CONVOLUTIONAL_SECOND),
    ):
        found = {method: prong.choices(method, settings, second) for method in training.METHODS}
        assert len({len(set(c)) for c in found.values()}) == 1
        low, high = min(c.rate for c in found["prong"]), max(c.rate for c in found["prong"])
        assert (
            min(c.rate for c in found["sgd"]) == low and max(c.rate for c in found["sgd"]) >= high
        )


@pytest.mark.parametrize("method", [*training.METHODS, "backward", "kfac"])
def test_every_method_learns(method):
    x = training.images(7)[0]
    choice = training.Choice(
        *{"rmsprop": (1e-2, 0.0, 0.9), "backward": (3e-3, 0.0, 1e-1)}.get(method, (3e-2, 0.0, 1e-1))
    )
    run = training.autoencoder_run(
        method, "whitened", choice, (49, 20, 5), x, generator(), period=10, batch=64, samples=200
    )
    first = run.error(x)
    assert run.train(30).error(x) < 0.98 * first and run.clock.seconds > 0


@pytest.mark.parametrize("method", ["sgd", "prong"])
def test_a_diverging_run_stops_and_counts_as_1000(method):
    x = training.images(7)[0]
    run = training.autoencoder_run(
        method,
        "sigmoid",
        training.Choice(1e6, 0.0, 1e-3),
        (49, 20, 5),
        x,
        generator(),
        period=2,
        batch=64,
        samples=200,
    )
    run.train(20)
    assert run.diverged and run.error(x) == 1e3


def test_prong_plus_is_prong_on_a_model_with_batch_normalization():
    x = training.images(7)[0]
    run = training.autoencoder_run(
        "prong+",
        "whitened",
        training.Choice(0.01, 0.0, 0.01),
        (49, 20, 5),
        x,
        generator(),
        period=10,
        batch=64,
        samples=200,
    )
    assert any(isinstance(m, nn.BatchNorm1d) for m in run.model)
    assert len(run.optimizer.layers) == 4


# ---- Conditioning


def small_network() -> tuple[nn.Sequential, torch.Tensor]:
    x = fisher.digits()[0][:300]
    return fisher.tanh_network((100, 6, 5, 4), generator()), x


def test_fisher_in_whitened_coordinates_is_that_of_the_whitened_layer():
    model, x = small_network()
    place, layer = fisher.linear_layers(model)[1]
    c, U = fisher.layer_statistics(model, place, x, 1e-3)
    G = fisher.layer_fisher(model, layer, x)
    ours = fisher.in_coordinates(G, fisher.whitened_map(c, U))
    whitened = layers.whiten_model(model)
    h = model[:place](x).detach()
    whitened[place].rewhiten(c, torch.cov(h.mT, correction=0), 1e-3)
    direct = metrics.fisher(whitened, x, Categorical(), parameters=[whitened[place].V])
    torch.testing.assert_close(
        torch.linalg.eigvalsh(ours), torch.linalg.eigvalsh(direct), rtol=1e-9, atol=1e-12
    )
    wrong = fisher.in_coordinates(
        G, torch.cat([U, torch.zeros(6, 1, dtype=U.dtype)], 1)
    )  # forgets the centring
    assert float((torch.linalg.eigvalsh(wrong) - torch.linalg.eigvalsh(direct)).norm()) > 1e-3


def test_the_full_fisher_matrix_of_whitened_layers_in_closed_form():
    model, x = small_network()
    whitened = layers.whiten_model(model)
    for place, _ in fisher.linear_layers(model):
        h = whitened[:place](x).detach()
        whitened[place].rewhiten(h.mean(0), torch.cov(h.mT, correction=0), 1e-3)
    direct = torch.linalg.eigvalsh(metrics.fisher(whitened, x, Categorical()))

    def spectrum(centred: bool) -> torch.Tensor:
        maps = []
        for place, layer in fisher.linear_layers(model):
            A = torch.eye(layer.in_features + 1, dtype=torch.float64)
            A[:-1] = fisher.whitened_map(whitened[place].c * centred, whitened[place].U)
            maps.append((layer.out_features, A))
        return torch.linalg.eigvalsh(fisher.in_all_coordinates(fisher.full_fisher(model, x), maps))

    torch.testing.assert_close(spectrum(True), direct, rtol=1e-9, atol=1e-11)
    assert float((spectrum(False) - direct).norm()) > 1e-3  # forgets the centring
    plain = metrics.fisher(model, x, Categorical())
    torch.testing.assert_close(
        torch.linalg.eigvalsh(fisher.full_fisher(model, x)),
        torch.linalg.eigvalsh(plain),
        rtol=1e-9,
        atol=1e-12,
    )


def test_all_methods_start_from_the_same_function_and_conditioning():
    x, t = (part[:300] for part in fisher.digits())
    options = {"widths": (100, 6, 5, 4), "period": 10, "batch": 50, "eps": 1e-3}
    t = t % 4

    def start(method: str, kind: type = fisher.EqualStart) -> fisher.Training:
        return kind(method, 0.1, x, t, generator(), **options)

    runs = {method: start(method) for method in ("sgd", "rmsprop", "batchnorm", "prong")}
    for run in runs.values():
        assert run.loss() == pytest.approx(runs["sgd"].loss(), rel=1e-3)
        for conditions in ("conditions", "full_conditions"):
            found, same = (getattr(each, conditions)(x) for each in (run, runs["sgd"]))
            assert found["means"] == pytest.approx(same["means"], rel=0.05), conditions
            assert found["spread"] == pytest.approx(same["spread"], rel=0.01), conditions
    without = start("batchnorm", fisher.Training)  # a normalization that changes the function
    assert without.conditions(x)["means"] < 0.5 * runs["sgd"].conditions(x)["means"]
    before = runs["prong"].full_conditions(x)
    loss = runs["prong"].loss()
    after = runs["prong"].whiten().full_conditions(x)
    assert runs["prong"].loss() == pytest.approx(loss, rel=1e-9)  # no step
    assert after["median"] < 0.3 * before["median"]


def test_plain_coordinates_are_the_block_of_the_weights():
    model, x = small_network()
    layer = fisher.linear_layers(model)[1][1]
    G = fisher.in_coordinates(fisher.layer_fisher(model, layer, x), fisher.plain_map(6))
    torch.testing.assert_close(
        G, metrics.fisher(model, x, Categorical(), parameters=[layer.weight])
    )


def test_whitened_inputs_are_white_only_with_the_centred_covariance():
    model, x = small_network()
    place = fisher.linear_layers(model)[1][0]
    for centred in (True, False):
        c, U = fisher.layer_statistics(model, place, x, 1e-9, centred)
        white = (model[:place](x).detach() - c) @ U.mT
        lam = torch.linalg.eigvalsh(white.mT @ white / len(x))
        assert (float(lam[0]) > 0.999) is centred and float(lam[-1]) == pytest.approx(1, abs=1e-3)


def test_the_variance_of_trained_hidden_layers_lies_in_few_directions():
    """Section 5: after 500 updates, nine tenths of the variance in less than half of the directions
    of every layer, and less concentrated in the first hidden layer before them.
    """
    x, t = (part[:1000] for part in fisher.digits())
    model = fisher.tanh_network((100, 20, 20, 10), generator())

    def directions() -> list[float]:
        shares = []
        for place, _ in fisher.linear_layers(model):
            h = model[:place](x).detach()
            lam = torch.linalg.eigvalsh(torch.cov(h.mT)).flip(0)
            shares.append(float((lam.cumsum(0) < 0.9 * lam.sum()).sum() + 1) / len(lam))
        return shares

    before = directions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(500):
        chosen = torch.randint(1000, (100,), generator=generator(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), t[chosen]).backward()
        optimizer.step()
    assert max(directions()) < 0.5 < before[1]


def test_conditions_by_hand():
    lam = torch.tensor(
        [1e-6, 1e-2, 1e-2, 1e-1, 1e-1, 1e-1, 1e-1, 1.0, 1.0, 10.0], dtype=torch.float64
    )
    found = fisher.conditions(torch.diag(lam))
    expected = {
        "raw": 1e7,
        "damped": 10.00001 / 1.1e-5,
        "tail": 1e3,
        "median": 100.0,
        "absolute": 10.0001 / 1.01e-4,
        "means": float(lam.mean()) / math.exp(float(lam.log().mean())),
        "spread": 1 - float(lam.sum()) ** 2 / float((lam**2).sum()) / 10,
    }
    assert found == pytest.approx(expected) and set(found) == set(fisher.DEFINITIONS)
    flat = fisher.conditions(torch.eye(4, dtype=torch.float64))
    assert (
        all(flat[name] == pytest.approx(1) for name in flat if name != "spread")
        and flat["spread"] == 0
    )


def test_prong_is_aligned_where_its_assumptions_hold():
    """With one layer, and outputs whose Fisher matrix is a multiple of the identity, PRONG is the
    natural gradient.
    """
    x, t = fisher.digits()[0][:200], fisher.digits()[1][:200]
    model = fisher.tanh_network((100, 10), generator())
    with torch.no_grad():
        model[0].weight.zero_()  # equal probabilities: F(r) = I/10 - 1/100, and gradients sum to 0
    cosines = fisher.alignment(model, x, t, [fisher.second_moment(model, 0, x)], 1e-2)
    assert cosines["prong"] > 0.99 and cosines["gradient"] < 0.9
    wrong = fisher.alignment(model, x, t, [torch.eye(101, dtype=x.dtype)], 1e-2)
    assert wrong["prong"] < 0.95


def test_no_direction_is_multiplied_by_more_than_one_over_epsilon():
    x = fisher.digits()[0][:200]
    for eps in (1e-6, 1e-2):
        U, _ = layers.whitening_pair(torch.cov(x.mT, correction=0), eps)
        gain = torch.linalg.eigvalsh(U.mT @ U)
        assert float(gain[-1]) == pytest.approx(1 / eps, rel=1e-6), (
            "a constant pixel gets all of it"
        )


def test_batch_norm_is_measured_at_rest():
    model = fisher.tanh_network((100, 6, 5, 4), generator(), batch_norm=True)
    x = fisher.digits()[0][:300]
    resting = training.at_rest(model, x)
    h = resting[:2](x).detach()
    assert float(h.mean(0).abs().max()) < 1e-6 and float((h.var(0) - 1).abs().max()) < 0.02
    assert model.training and int(model[1].num_batches_tracked) == 0


# ---- The convolutional network


def test_crops_and_flips_are_windows_of_the_image():
    x = torch.arange(2 * 25, dtype=torch.float32).view(2, 1, 5, 5)
    windows = {
        tuple(w.flatten().tolist()): flipped
        for i in range(2)
        for r in range(3)
        for c in range(3)
        for flipped in (False, True)
        for w in [
            x[i, 0, r : r + 3, c : c + 3].flip(1) if flipped else x[i, 0, r : r + 3, c : c + 3]
        ]
    }
    g, seen = generator(), set()
    for _ in range(200):
        out = maps.augmented(x, 3, g)
        assert out.shape == (2, 1, 3, 3)
        seen |= {tuple(w.flatten().tolist()) for w in out}
    assert seen == set(windows)


def test_waterfall_divides_by_ten_after_no_improvement():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    waterfall = maps.Waterfall(optimizer, patience=2)
    rates = []
    for error in (5, 4, 4, 4, 3, 3, 3, 3, 3):
        waterfall.look(error)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert waterfall.drops == 3


def test_convolutional_network_has_pairs_of_convolutions():
    model = maps.network(1, (3, 5), True, generator())
    convolutions = [m for m in model if isinstance(m, nn.Conv2d)]
    assert [m.weight.shape[:2] for m in convolutions] == [(3, 1), (3, 3), (5, 3), (5, 5)]
    norms = [m for m in model if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == len(set(map(id, norms))) == 4, "each convolution has its own"
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


# ---- Every experiment


def test_all_experiments_are_known():
    assert {name for name in experiments.names() if name.startswith("prong")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_gives_the_same_numbers_again(name):
    first, again = (experiments.run(name, seed=3, **SMALL[name]).values for _ in range(2))
    timed = ("seconds",) if name != "prong_time" else tuple(first)
    for key in first:
        if key not in timed:
            assert first[key] == again[key], key
    if name == "prong_time":
        assert first["prong"] > 0 and set(first) == set(again)


def test_an_experiment_does_not_depend_on_the_default_dtype():
    first = experiments.run("prong_autoencoder", method="prong", **SMALL["prong_autoencoder"])
    try:
        torch.set_default_dtype(torch.float64)
        second = experiments.run("prong_autoencoder", method="prong", **SMALL["prong_autoencoder"])
    finally:
        torch.set_default_dtype(torch.float32)
    assert first["train"] == second["train"] and first["search"] == second["search"]
