"""The algorithm of Section 1.4, and the enumerable Boltzmann machine of Section 2.4, one state and
one term after the other.
"""

import itertools
from collections.abc import Callable

import torch

Function = Callable[[torch.Tensor], torch.Tensor]


def step_in_phi(J: Function, theta: torch.Tensor, W: torch.Tensor, eta: float) -> torch.Tensor:
    """Return theta after one step of steepest descent in the parameters phi = W theta.

    Parameters
    ----------
    J : callable
        The objective, from theta (P,) to a number; differentiable.
    theta : Tensor, shape (P,)
        Where the step starts.
    W : Tensor, shape (P, P)
        Any root of the metric at theta: W^T W = G.
    eta : float
        The step size.

    Source: whitening Section 1.4, Eqs. 11 and 16; in step 2 the paper prints no minus.

    Examples
    --------
    >>> W = torch.tensor([[2.0]])
    >>> step_in_phi(lambda theta: theta.square().sum(), torch.tensor([1.0]), W, 1.0)
    tensor([0.5000])
    """

    def J_of_phi(phi: torch.Tensor) -> torch.Tensor:
        return J(torch.linalg.solve(W, phi))  # 1. J in terms of phi = W theta

    phi = W @ theta
    delta_phi = -eta * torch.func.grad(J_of_phi)(phi)  # 2. the step in phi
    return torch.linalg.solve(W, phi + delta_phi)  # 3. the theta that belongs to it


def descend_in_phi(
    J: Function, theta: torch.Tensor, G: Function, eta: float, steps: int
) -> torch.Tensor:
    """Return theta after steps 1 to 4 of the algorithm, with W the symmetric root of G(theta).

    Source: whitening Section 1.4, Eqs. 17 and 18.

    Parameters
    ----------
    J : callable
        The objective, from theta (P,) to a number; differentiable.
    theta : Tensor, shape (P,)
        Where the descent starts.
    G : callable
        The metric (P, P) at theta.
    eta : float
        The step size.
    steps : int

    Examples
    --------
    >>> descend_in_phi(lambda t: 8 * t @ t, torch.ones(1), lambda t: 16 * torch.eye(1), 0.5, 2)
    tensor([0.2500])
    """
    for _ in range(steps):  # 4. repeat
        lam, Q = torch.linalg.eigh(G(theta))
        theta = step_in_phi(J, theta, (Q * lam.sqrt()) @ Q.mT, eta)
    return theta


def all_states(n: int, values: tuple[float, float]) -> torch.Tensor:
    """Return all 2**n states of n units, the first unit changing slowest; (2**n, n).

    Parameters
    ----------
    n : int
    values : pair of float

    Examples
    --------
    >>> all_states(2, (-1.0, 1.0)).tolist()
    [[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]
    """
    return torch.tensor(list(itertools.product(values, repeat=n)), dtype=torch.float64)


def pair_energy(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return E of one state: minus couplings (pairs i < j in order) and biases, one term after the
    other.

    Parameters
    ----------
    theta : Tensor, shape (n (n - 1) / 2 + n,)
        Couplings and biases.
    x : Tensor, shape (n,)

    Examples
    --------
    >>> float(pair_energy(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([1.0, 1.0])))
    -2.0
    """
    pairs = list(itertools.combinations(range(len(x)), 2))
    energy = torch.zeros((), dtype=theta.dtype)
    for i in range(len(x)):
        energy = energy - theta[len(pairs) + i] * x[i]
    for k, (i, j) in enumerate(pairs):
        energy = energy - theta[k] * x[i] * x[j]
    return energy


def boltzmann_probabilities(theta: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return exp(-E) / Z of every state, one after the other.

    Parameters
    ----------
    theta : Tensor, shape (n (n - 1) / 2 + n,)
        Couplings and biases.
    states : Tensor, shape (k, n)

    Examples
    --------
    >>> states = all_states(2, (-1.0, 1.0))
    >>> boltzmann_probabilities(torch.zeros(3, dtype=states.dtype), states).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    weights = torch.stack([torch.exp(-pair_energy(theta, x)) for x in states])
    return weights / weights.sum()


def gibbs_matrix(theta: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return T with T[a, b] the probability that one Gibbs sweep, units in order, goes from state a
    to state b.

    Parameters
    ----------
    theta : Tensor, shape (n (n - 1) / 2 + n,)
        Couplings and biases.
    states : Tensor, shape (2**n, n)

    Examples
    --------
    >>> states = all_states(1, (-1.0, 1.0))
    >>> gibbs_matrix(torch.zeros(1, dtype=states.dtype), states).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    q, sweep = boltzmann_probabilities(theta, states), torch.eye(len(states), dtype=states.dtype)
    for unit in range(states.shape[1]):
        rest = [i for i in range(states.shape[1]) if i != unit]
        same = (states[:, None, rest] == states[None, :, rest]).all(-1).to(states.dtype)
        sweep = sweep @ (same * q / (same * q).sum(1, keepdim=True))
    return sweep


def minimum_probability_flow(
    theta: torch.Tensor, x: torch.Tensor, values: tuple[float, float]
) -> torch.Tensor:
    """Return the mean over the data ``x`` (m, n) of the sum over single flips of exp((E(x) -
    E(flipped)) / 2).

    Parameters
    ----------
    theta : Tensor, shape (n (n - 1) / 2 + n,)
        Couplings and biases.
    x : Tensor, shape (m, n)
    values : pair of float

    Examples
    --------
    >>> float(minimum_probability_flow(torch.zeros(3), torch.ones(1, 2), (-1.0, 1.0)))  # two flips
    2.0
    """
    total = torch.zeros((), dtype=x.dtype)
    for state in x:
        for unit in range(len(state)):
            flipped = state.clone()
            flipped[unit] = sum(values) - state[unit]
            total = total + torch.exp((pair_energy(theta, state) - pair_energy(theta, flipped)) / 2)
    return total / len(x)
