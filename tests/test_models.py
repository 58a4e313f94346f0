"""The linear Gaussian and the Boltzmann machine against brute force."""

import torch

from natcompanion.metrics import energy_metric
from natcompanion.models import BoltzmannMachine, LinearGaussian

M = torch.tensor([[3.0, 1 / 3], [1 / 3, 0.0]], dtype=torch.float64)


def tensor(x) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def close(got, expected) -> None:
    torch.testing.assert_close(got, tensor(expected), rtol=1e-8, atol=1e-10)


def test_linear_gaussian_cases(cases):
    case, model = cases("whitening"), LinearGaussian(M)
    close(model.fisher(), case["g2d_fisher"]["expected"]["G"])
    theta, zero = tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.float64)
    close(model.gradient(theta, tensor(case["g2d_gradient"]["inputs"]["mean_x"])), case["g2d_gradient"]["expected"]["grad_J"])
    close(model.kl(theta, zero), case["g2d_kl"]["expected"]["kl"])
    close(model.path(theta, zero, lr=0.1, steps=5), case["g2d_sgd_path"]["expected"]["path"])
    inverse = torch.linalg.inv(model.fisher())
    natural = model.path(theta, zero, lr=0.1, steps=5, inverse_metric=inverse)
    close(natural, case["g2d_ng_path"]["expected"]["path"])
    close(model.data_fisher(theta, zero), case["g2d_data_fisher"]["expected"]["G_data"])


def test_fisher_of_section_1_2():
    expected = tensor([[9 + 1 / 9, 1.0], [1.0, 1 / 9]])
    assert float((LinearGaussian(M).fisher() - expected).abs().max()) < 1e-12


def test_boltzmann_cases(cases):
    for name in ("bm_eq33", "bm_mpf"):
        case = cases("whitening")[name]
        model = BoltzmannMachine(3)
        theta, x = tensor(case["inputs"]["theta"]), tensor(case["inputs"]["X"])
        p = model.empirical(x)
        if name == "bm_eq33":
            close(model.energy_metric(p), case["expected"]["G"])
            close(model.energy_metric(p, centred=True), case["expected"]["centred_version"])
            close(energy_metric(model.energy, theta, x), case["expected"]["G"])
            close(energy_metric(model.energy, theta, x, centred=True), case["expected"]["centred_version"])
        else:
            close(model.mpf(theta, p), case["expected"]["K"])
            close(model.mpf_gradient(theta, p), case["expected"]["grad"])
            close(model.gradient(theta, p), case["expected"]["grad_ml"])
