"""Restricted Boltzmann machines with an exact Fisher matrix, the covariance penalty, and learned
whitening.
"""

from natcompanion.boltzmann.blocks import FisherForms, fisher_blocks, fisher_forms, norm_terms
from natcompanion.boltzmann.classify import ClassificationRBM, fit_softmax, one_hot
from natcompanion.boltzmann.enumeration import ENUMERATION_LIMIT, states
from natcompanion.boltzmann.fisher import (
    ExactFisherOperator,
    SampledFisherOperator,
    conditional_covariance,
    exact_fisher,
    log_likelihood_hessian,
    marginal_fisher,
)
from natcompanion.boltzmann.hidden import covariance_norm, hidden_covariance_penalty
from natcompanion.boltzmann.penalty import (
    FRACTIONS,
    THRESHOLDS,
    CovariancePenalty,
    Moments,
    PaperPenalty,
    ThresholdController,
    covariances,
    model_moments,
    natural_direction,
    printed_difference,
    product_rule_difference,
    sample_moments,
    sampled_penalty_gradient,
)
from natcompanion.boltzmann.rbm import RBM
from natcompanion.boltzmann.statistics_penalty import StatisticsPenalty
from natcompanion.boltzmann.sums import conditional_statistics, statistic_names
from natcompanion.boltzmann.training import (
    WEIGHT_LIMIT,
    PersistentChains,
    cd_epoch,
    check_weights,
    reconstruction_error,
)
from natcompanion.boltzmann.whitened import (
    LearnedWhitening,
    centred_direction,
    equivariant_step,
    exact_whitened_direction,
    metric_cosine,
    ridge_inverse,
    whitened_direction,
)
from natcompanion.whitening import Divergence as Divergence  # raised here, documented there

__all__ = [
    "ENUMERATION_LIMIT",
    "FRACTIONS",
    "RBM",
    "THRESHOLDS",
    "WEIGHT_LIMIT",
    "ClassificationRBM",
    "CovariancePenalty",
    "ExactFisherOperator",
    "FisherForms",
    "LearnedWhitening",
    "Moments",
    "PaperPenalty",
    "PersistentChains",
    "SampledFisherOperator",
    "StatisticsPenalty",
    "ThresholdController",
    "cd_epoch",
    "centred_direction",
    "check_weights",
    "conditional_covariance",
    "conditional_statistics",
    "covariance_norm",
    "covariances",
    "equivariant_step",
    "exact_fisher",
    "exact_whitened_direction",
    "fisher_blocks",
    "fisher_forms",
    "fit_softmax",
    "hidden_covariance_penalty",
    "log_likelihood_hessian",
    "marginal_fisher",
    "metric_cosine",
    "model_moments",
    "natural_direction",
    "norm_terms",
    "one_hot",
    "printed_difference",
    "product_rule_difference",
    "reconstruction_error",
    "ridge_inverse",
    "sample_moments",
    "sampled_penalty_gradient",
    "states",
    "statistic_names",
    "whitened_direction",
]
