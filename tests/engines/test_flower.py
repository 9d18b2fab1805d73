"""The engine over Flower keeps the contract: a Grid in this process carries real messages to the real code of nodes."""

from __future__ import annotations

import pytest

from engines.cases import CASES
from engines.contract import check
from engines.fake_grid import engine_over

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


@pytest.mark.parametrize("name", CASES)
def test_users_behind_a_grid_take_the_same_way(name: str) -> None:
    check(engine_over, name, unknown=("gap", "average_gap"))
