"""Least absolute deviations: convex, not smooth, not strongly convex. Where FedPi is needed."""

import numpy as np
import pytest

import resolvent as rs

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def deviations(seed: int) -> rs.AbsoluteDeviations:
    rng = np.random.default_rng(seed)
    return rs.AbsoluteDeviations(rng.standard_normal((20, 3)), rng.standard_normal(20))


def final_gap(run: rs.Run) -> float:
    return float(run.history.gap.iloc[-1])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedpi_converges(seed: int) -> None:
    run = rs.solve(deviations(seed), rs.fedpi(0.3), rounds=2000, every=2000)
    assert final_gap(run) < 1e-6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedpi_converges_with_one_user_in_ten(seed: int) -> None:
    stop = rs.Stop(gap=1e-6)
    run = rs.solve(deviations(seed), rs.fedpi(0.3), rounds=10_000, every=200, participation=0.1, stop=stop)
    assert run.status == "stopped"
    assert final_gap(run) < 1e-6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedsplit_goes_round_for_ever(seed: int) -> None:
    history = rs.solve(deviations(seed), rs.fedsplit(0.3), rounds=2000).history
    assert history.residual.iloc[-500:].min() > 0.1
    assert history.gap.iloc[-500:].max() > 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_as_the_paper_samples_it_diverges(seed: int) -> None:
    """Not only does Algorithm 1 stall: here stale z drive the users apart."""
    sampled = rs.Bernoulli(0.1, absent="paper")
    with pytest.warns(rs.DivergenceWarning):
        run = rs.solve(deviations(seed), rs.fedpi(0.3), rounds=1000, every=1000, participation=sampled)
    assert run.status == "diverged"
    assert len(run.history) == 1  # the round in which it was noticed, whatever the cadence
    assert final_gap(run) > 100
