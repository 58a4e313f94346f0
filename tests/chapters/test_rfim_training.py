"""Figure 5: the networks, the loop, the methods, and what an experiment returns."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _rfim_training as training
from natcompanion.chapters.experiments import rfim
from natcompanion.optim import RNGD

SMALL = {"steps": 20, "tests": 2, "hidden": (8, 8)}
SETTINGS = {"eps": 0.03, "period": 100, "decay": 0.995}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_networks_of_one_seed_have_the_same_weights():
    plain, before, after = (
        training.network((9, 4, 5, 3), kind, generator()) for kind in ("", "bnb", "bna")
    )
    kinds = [[type(m).__name__ for m in model] for model in (plain, before, after)]
    assert kinds[0] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert kinds[1] == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds[2] == ["Linear", "ReLU", "BatchNorm1d", "Linear", "ReLU", "BatchNorm1d", "Linear"]
    assert torch.equal(plain[4].weight, before[6].weight) and torch.equal(
        plain[4].weight, after[6].weight
    )
    assert before[1].eps == 1e-3
    wide = training.network((50, 400, 3), "", generator())[0]
    assert float(wide.weight.detach().std()) == pytest.approx(math.sqrt(2 / 50), rel=0.02)
    assert not wide.bias.any()


def test_batches_cover_an_epoch_and_then_begin_anew():
    drawn = [
        index for index, _ in zip(training.batches(10, 3, generator()), range(6), strict=False)
    ]
    assert [len(index) for index in drawn] == [3] * 6
    first, second = torch.cat(drawn[:3]), torch.cat(drawn[3:])
    assert len(first.unique()) == 9 and len(second.unique()) == 9 and not torch.equal(first, second)


def test_methods():
    model = training.network((9, 4, 4, 3), "", generator())
    make = {m: training.optimizer(m, model, 0.1, **SETTINGS) for m in training.METHODS}
    assert {type(o) for m, o in make.items() if m.startswith("sgd")} == {torch.optim.SGD}
    assert {type(o) for m, o in make.items() if m.startswith("adam")} == {torch.optim.Adam}
    groups = {m: make[m].param_groups[0] for m in ("rngd", "fast", "rngd_linear")}
    assert [(g["period"], g["decay"], g["eps"]) for g in groups.values()] == [
        (100, 0.995, 0.03),
        (20, 0.98, 0.03),
        (100, 0.995, 0.03),
    ]
    assert [b.kind for b in make["rngd"].blocks.values()] == ["linear", "neuron", "linear"]
    assert [b.kind for b in make["rngd_linear"].blocks.values()] == ["linear"] * 3
    assert (
        training.optimizer("rngd", model, 0.1, **SETTINGS, every=3).defaults["statistics_every"]
        == 3
    )


def test_training_is_a_plain_loop():
    x, t = (
        torch.rand(30, 9, generator=generator(2)),
        torch.randint(3, (30,), generator=generator(3)),
    )
    models = [training.network((9, 4, 3), "", generator()) for _ in range(2)]
    watched = []
    costs, seconds = training.train(
        models[0],
        torch.optim.SGD(models[0].parameters(), 0.1),
        x,
        t,
        7,
        10,
        generator(1),
        watched.append,
    )
    expected = []
    for index, _ in zip(training.batches(30, 10, generator(1)), range(7), strict=False):
        cost = F.cross_entropy(models[1](x[index]), t[index])
        expected.append(cost.detach())
        for p, g in zip(
            models[1].parameters(),
            torch.autograd.grad(cost, list(models[1].parameters())),
            strict=True,
        ):
            p.data -= 0.1 * g
    torch.testing.assert_close(costs, torch.stack(expected))
    assert watched == list(range(1, 8)) and seconds > 0


@pytest.mark.parametrize(
    "make", [lambda m: torch.optim.SGD(m.parameters(), 1e6), lambda m: RNGD(m, 1e6, period=1)]
)
def test_divergence_ends_a_training(make):
    x, t = (
        torch.rand(30, 9, generator=generator(2)),
        torch.randint(3, (30,), generator=generator(3)),
    )
    model = training.network((9, 4, 3), "", generator())
    costs, _ = training.train(model, make(model), x, t, 50, 10, generator(1))
    assert float(costs[0]) < 10 and costs[-1] == math.inf
    assert training.summary(costs, (0.1, 0.5)) == {
        "sharp_mean": [math.inf] * 2,
        "sharp_std": [math.inf] * 2,
    }


def test_evaluation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3)).train()
    x, t = (
        torch.rand(20, 4, generator=generator(2)),
        torch.randint(3, (20,), generator=generator(3)),
    )
    cost, error = training.evaluate(model, x, t, block=6)
    assert model.training
    r = model.eval()(x).detach()
    assert cost == pytest.approx(float(F.cross_entropy(r, t)), rel=1e-5)
    assert error == pytest.approx(100 * float((r.argmax(1) != t).float().mean()))
    model[1].bias.data[0] = math.nan
    assert training.evaluate(model, x, t)[0] == math.inf


def test_summary():
    costs = torch.tensor([9.0, 1.0, 2.0, 3.0])
    assert training.smoothed(costs, 2) == [5.0, 2.5]
    found = training.summary(costs, (0.5, 1.0))
    assert found["sharp_mean"] == [2.5, 3.75] and found["sharp_std"][0] == 0.5


@pytest.mark.parametrize("method", ["sgd", "adam_bna", "rngd", "fast_linear"])
def test_figure5(method):
    result = experiments.run("rfim_figure5", method=method, rate=0.01, **SMALL)
    assert len(result["curve"]) == 2 and len(result["test_error"]) == len(result["test_cost"]) == 2
    assert 0 < result["train_cost"] < 3 and 0 <= result["test_error"][-1] <= 100
    assert len(result["sharp_mean"]) == 2 and result["milliseconds"] > 0


def test_figure5_is_repeatable_and_its_settings_matter():
    def run(**changes):
        values = experiments.run(
            "rfim_figure5", **{**SMALL, "steps": 10, "period": 5, **changes}
        ).values
        return {key: value for key, value in values.items() if key != "milliseconds"}

    base = run()
    assert run() == base
    for changes in (
        {"rate": 0.2},
        {"eps": 0.1},
        {"period": 4},
        {"decay": 0.9},
        {"every": 2},
        {"batch": 50},
        {"seed": 1},
    ):
        assert run(**changes) != base


def test_step_time():
    result = experiments.run("rfim_step_time", steps=4, steps_each=2, hidden=(8, 8))
    assert set(result.values) == {
        "sgd",
        "sgd_bna",
        "sgd_bnb",
        "adam",
        "rngd",
        "rngd_every_batch",
        "rngd_each_step",
    }
    assert all(value > 0 for value in result.values.values())


def test_the_same_number_of_step_sizes_for_everyone():
    assert len({len(rates) for rates in rfim.RATES.values()}) == 1
