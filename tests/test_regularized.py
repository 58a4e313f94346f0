"""Damping, Eq. 35, and ridge regression."""

import torch

from natcompanion.solvers import damped_solve, ridge_solve, stochastic_robust_inverse


def test_case(cases):
    case = cases("whitening")["sra"]
    for name, result in (("G", "inverse"), ("G_nonsymmetric", "inverse_nonsymmetric")):
        G = torch.tensor(case["inputs"][name], dtype=torch.float64)
        expected = torch.tensor(case["expected"][result], dtype=torch.float64)
        got = stochastic_robust_inverse(G, case["inputs"]["eps"])
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
        g = torch.ones(len(G), dtype=torch.float64)
        torch.testing.assert_close(ridge_solve(G, g, case["inputs"]["eps"]), expected @ g, rtol=1e-8, atol=1e-10)
        assert not torch.allclose(damped_solve(G, g, case["inputs"]["eps"]), expected @ g, rtol=1e-2)
    # Negative control: without the transpose the non-symmetric matrix comes out wrong.
    wrong = torch.linalg.solve(G.mT @ G + case["inputs"]["eps"] * torch.eye(2, dtype=torch.float64), G)
    assert not torch.allclose(wrong, expected, rtol=1e-2)
