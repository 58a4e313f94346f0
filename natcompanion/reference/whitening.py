"""The enumerable Boltzmann machine of Section 2.4, one state and one term after the other."""

import itertools

import torch


def all_states(n: int, values: tuple[float, float]) -> torch.Tensor:
    """Return all 2**n states of n units, the first unit changing slowest; (2**n, n)."""
    return torch.tensor(list(itertools.product(values, repeat=n)), dtype=torch.float64)


def pair_energy(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return E of one state: minus couplings (pairs i < j in order) and biases, one term after the
    other.
    """
    pairs = list(itertools.combinations(range(len(x)), 2))
    energy = torch.zeros((), dtype=theta.dtype)
    for i in range(len(x)):
        energy = energy - theta[len(pairs) + i] * x[i]
    for k, (i, j) in enumerate(pairs):
        energy = energy - theta[k] * x[i] * x[j]
    return energy


def boltzmann_probabilities(theta: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return exp(-E) / Z of every state, one after the other."""
    weights = torch.stack([torch.exp(-pair_energy(theta, x)) for x in states])
    return weights / weights.sum()


def gibbs_matrix(theta: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return T with T[a, b] the probability that one Gibbs sweep, units in order, goes from state a
    to state b.
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
    """
    total = torch.zeros((), dtype=x.dtype)
    for state in x:
        for unit in range(len(state)):
            flipped = state.clone()
            flipped[unit] = sum(values) - state[unit]
            total = total + torch.exp((pair_energy(theta, state) - pair_energy(theta, flipped)) / 2)
    return total / len(x)
