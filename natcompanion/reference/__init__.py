"""The naive twins: what the library computes fast, written out in a few lines anyone can check by
eye.

``metrics`` holds the Fisher matrices and their relatives; the module of a paper its own.
"""

from natcompanion.reference import prong
from natcompanion.reference.boltzmann import (
    equation_4,
    hidden_state_fisher,
    natural_boltzmann_scheme,
    next_gamma,
    rbm_covariance,
    rbm_fisher,
    rbm_joint,
    rbm_log_likelihood,
    rbm_statistics,
)
from natcompanion.reference.metrics import (
    empirical_fisher,
    fisher,
    gradient,
    gradient_covariance,
    gradients,
    jacobian,
    kl,
    kl_hessian,
    labels,
    loss_hessian,
    outputs,
    parameter_vector,
)
from natcompanion.reference.rfim import (
    activation,
    brute_force_rfim,
    energy_distance,
    energy_information,
    layer_log_prob,
    responses,
    rngd,
    running_rfim,
    softmax_log_prob,
    stochastic_log_prob,
    two_layer_log_prob,
)
from natcompanion.reference.whitening import (
    all_states,
    boltzmann_probabilities,
    gibbs_matrix,
    minimum_probability_flow,
    pair_energy,
)

__all__ = [
    "activation",
    "all_states",
    "boltzmann_probabilities",
    "brute_force_rfim",
    "empirical_fisher",
    "energy_distance",
    "energy_information",
    "equation_4",
    "fisher",
    "gibbs_matrix",
    "gradient",
    "gradient_covariance",
    "gradients",
    "hidden_state_fisher",
    "jacobian",
    "kl",
    "kl_hessian",
    "labels",
    "layer_log_prob",
    "loss_hessian",
    "minimum_probability_flow",
    "natural_boltzmann_scheme",
    "next_gamma",
    "outputs",
    "pair_energy",
    "parameter_vector",
    "prong",
    "rbm_covariance",
    "rbm_fisher",
    "rbm_joint",
    "rbm_log_likelihood",
    "rbm_statistics",
    "responses",
    "rngd",
    "running_rfim",
    "softmax_log_prob",
    "stochastic_log_prob",
    "two_layer_log_prob",
]
