"""Single precision goes through everything, and ends as near to the double-precision model as it can."""

from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

RNG = np.random.default_rng(0)
A = RNG.standard_normal((5, 40, 8))
B = RNG.standard_normal((5, 40))
PROBLEMS = {"squares": (rs.LeastSquares, A, B), "logistic": (rs.Logistic, A, np.sign(B))}
SCHEMES = {
    "FedPi": rs.fedpi("auto"),
    "FedProx": rs.fedprox(0.02),
    "FedAvg": rs.fedavg(0.005, steps=2),
    "gradient prox": rs.fedprox(0.02, local=rs.GradientProx(20, anderson=2)),
}


@pytest.mark.parametrize("more", [{}, {"anderson": 2}, {"participation": 0.5}], ids=["plain", "anderson", "sampled"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_single_precision_follows_double(problem: str, scheme: str, more: dict[str, Any]) -> None:
    make, data, labels = PROBLEMS[problem]
    models = [
        rs.solve(make(data.astype(kind), labels.astype(kind)), SCHEMES[scheme], rounds=60, **more).model
        for kind in (np.float32, np.float64)
    ]
    assert models[0].dtype == torch.float32
    torch.testing.assert_close(models[0].double(), models[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("penalty", [rs.Box(-1, -0.7), rs.Simplex(1.2), rs.Ball([0.9] * 8, 0.7)], ids=str)
def test_a_constraint_that_single_precision_meets_is_met(penalty: Any) -> None:
    """0.1 in float32 is not 0.1: the value of a model on the boundary of a set is finite all the same."""
    runs = [
        rs.solve(rs.LeastSquares(A.astype(kind), B.astype(kind), penalty=penalty), rs.fedavg(0.01), rounds=30)
        for kind in (np.float32, np.float64)
    ]
    assert [run.status for run in runs] == ["finished", "finished"]
    values, exact = (run.history["value"].to_numpy() for run in runs)
    np.testing.assert_allclose(values, exact, rtol=1e-5)


@pytest.mark.parametrize("own", [False, True], ids=["logistic", "functions of one's own"])
@pytest.mark.parametrize("users", [1, 3])
def test_users_who_are_alike_at_an_eta_found_by_itself(own: bool, users: int) -> None:
    """eta is large where users do not differ, and with it the rounding of eta grad f: a prox is asked for no more."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((1, 19, 4)).astype(np.float32), rng.choice([-1.0, 1.0], (1, 19)).astype(np.float32)
    A, b = np.repeat(A, users, 0), np.repeat(b, users, 0)
    X, y = torch.from_numpy(A), torch.from_numpy(b)

    def value(W: torch.Tensor) -> torch.Tensor:
        losses = torch.nn.functional.softplus(-y.to(W) * torch.einsum("und,ud->un", X.to(W), W))
        return losses.sum(1) + 0.005 * W.square().sum(1)

    exact = rs.Logistic(A.astype(float), b.astype(float), reg=0.01).minimiser
    assert exact is not None
    given = {"value": value, "hessian": True, "dtype": torch.float32}
    problem = rs.Custom(users, 4, **given) if own else rs.Logistic(A, b, reg=0.01)  # type: ignore[arg-type]
    run = rs.solve(problem, rs.fedpi("auto"), rounds=40, every=40, progress=False)
    assert float((run.model.double() - exact).norm()) < 1e-4 * (1 + float(exact.norm()))


@pytest.mark.parametrize("seed", [4, 8])
def test_classes_in_the_metric_of_an_eta_found_by_itself(seed: int) -> None:
    """What a metric makes of a Hessian is symmetric up to rounding, which it stretches."""
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((1, 18, 3)), rng.integers(0, 3, (1, 18))
    A, b = np.repeat(A, 2, 0), np.repeat(b, 2, 0)
    b[:, :3] = [0, 1, 2]
    model = rs.solve(rs.Softmax(A.astype(np.float32), b, reg=0.01), rs.fedpi("auto"), rounds=25, every=25).model
    exact = rs.Softmax(A, b, reg=0.01).minimiser
    assert exact is not None
    assert float((model.double() - exact).norm()) < 1e-3 * (1 + float(exact.norm()))
