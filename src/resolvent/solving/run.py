"""What `solve` hands back: the model, personal models, history, and a State to go on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from resolvent.errors import InputError, refuse
from resolvent.iteration import checkpoint
from resolvent.iteration.engine import PERSONAL, Ask, Engine
from resolvent.iteration.state import State
from resolvent.solving.stopping import Best

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A finished, stopped, diverged or interrupted run.

    status: "finished", "stopped" (see `reason`), "diverged" or "interrupted". `state` is the last one, and
    `rs.solve(..., start=run.state)` goes on from it as if the run had never stopped. Of a run that diverged it is the
    best one by value, or by residual where values are unknown; the history has all rows, to the one that showed it.
    """

    def __init__(
        self,
        state: State,
        history: pd.DataFrame,
        status: str,
        reason: str,
        explanation: Any,
        engine: Engine | None = None,
        seed: int = 0,
        user_metrics: pd.DataFrame | None = None,
        best: Best | None = None,
    ) -> None:
        self.state = state
        self.history = history
        self.status = status
        self.reason = reason
        self.explanation = explanation
        self._engine = engine
        self._seed = seed
        self.best = best
        """The best model by the metric of rs.Stop, with its round and value; None where no metric was given."""
        self.user_metrics = user_metrics
        """Each user's metrics on held-out data at the last evaluation, one row per user; None where there are none."""

    @property
    def model(self) -> Tensor:
        """The model (d,): mean(z) of the last round, or the average of past models where one was asked for."""
        if self.state.average is not None:
            return self.state.average.model[0]
        return self.state.w[0]

    @property
    def personal(self) -> Tensor:
        """Each user's latest local answer, (users, d). Users who share one u are asked once more."""
        state = self.state
        if not state.together or state.next is None or PERSONAL in state.memory:
            return state.memory.get(PERSONAL, state.p) if state.together else state.p
        if self._engine is None:
            raise InputError(
                "personal models of a loaded run of one shared vector need the users: go on from its state"
            )
        ask = Ask(state.round - 1, state.eta, None, self._seed)
        return self._engine.local(ask, state.u, state.memory).p

    def module(self) -> nn.Module:
        """A trained copy of the network that the problem was made from."""
        made: nn.Module = self._network().module(self.model, self.state.memory)
        return made

    def personal_module(self, user: int) -> nn.Module:
        """A copy of the network as this user trained it last."""
        network = self._network()
        if not 0 <= user < network.users:
            refuse("user", user, f"a number from 0 to {network.users - 1} is needed")
        made: nn.Module = network.module(self.personal[user], self.state.memory, user)
        return made

    def _network(self) -> Any:
        problem = getattr(self._engine, "problem", None)
        if problem is None or not hasattr(problem, "module"):
            raise InputError(
                "there is no network to hand back: the run is not one of rs.Neural, or was loaded from disk"
            )
        return problem

    def save(self, folder: str | Path) -> Path:
        """Write the run into a folder: state.safetensors, history.csv and run.json."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors, numbers = checkpoint.pack(self.state)
        own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        save_file(own, folder / "state.safetensors", metadata={"numbers": json.dumps(numbers)})
        self.history.to_csv(folder / "history.csv", index=False)
        about = {"status": self.status, "reason": self.reason, "explanation": str(self.explanation), "seed": self._seed}
        (folder / "run.json").write_text(json.dumps(about, indent=2) + "\n")
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read back what `save` wrote."""
        import pandas as pd
        from safetensors import safe_open

        folder = Path(folder)
        if not (folder / "state.safetensors").is_file():
            refuse("folder", str(folder), "a folder written by Run.save is needed")
        with safe_open(folder / "state.safetensors", framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            numbers = json.loads(file.metadata()["numbers"])
        about = json.loads((folder / "run.json").read_text())
        history = pd.read_csv(folder / "history.csv", dtype=str).astype(float)  # Python's floats keep every bit
        counts = [name for name in ("round", "participants", "bytes_up", "bytes_down") if name in history]
        history = history.astype(dict.fromkeys(counts, "int64"))
        return cls(
            checkpoint.unpack(tensors, numbers),
            history,
            about["status"],
            about["reason"],
            about["explanation"],
            seed=about["seed"],
        )

    def __repr__(self) -> str:
        rows = self.history[self.history["round"] == self.state.round] if len(self.history) else self.history
        own: Any = rows.iloc[-1] if len(rows) else {}
        figures = ", ".join(f"{name} {own[name]:.3g}" for name in ("value", "gap", "residual") if name in own)
        ended = f"{self.status} after {self.state.round} rounds ({self.reason})"
        if self.status == "diverged":
            ended = f"diverged ({self.reason}); the state after round {self.state.round}"
        return f"Run({ended}{'; ' if figures else ''}{figures})"
