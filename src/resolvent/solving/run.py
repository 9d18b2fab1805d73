"""What `solve` hands back and `rs.open` reads: the model, personal models, history, and a State to go on from."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import Tensor, nn

from resolvent.errors import InputError, file_path, flag, refuse
from resolvent.iteration.engine import PERSONAL, Ask, Engine
from resolvent.iteration.metric_names import of_reported
from resolvent.iteration.private_mean import Spent
from resolvent.iteration.state import State
from resolvent.solving import predicting
from resolvent.solving.description import Description
from resolvent.solving.stopping import Best

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Run:
    """A finished, stopped, diverged or interrupted run.

    status: "finished", "stopped" (see `reason`), "diverged" or "interrupted". `state` is the last one, and
    `run.resume(rounds=...)` goes on from it as if the run had never stopped. Of a run that diverged it is the best one
    by value, or by residual where values are unknown; the history has all rows, to the one that showed it.

    What lies on higher floors, or is heavy, is found by name when it is asked for.
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
        description: Description | None = None,
        config: dict[str, dict[str, Any]] | None = None,
        arguments: dict[str, Any] | None = None,
        folder: Path | None = None,
        personal: Tensor | None = None,
        remembered: Any = None,
    ) -> None:
        self.state = state
        self.history = history
        self.status = status
        self.reason = reason
        self.explanation = explanation
        self.seed = seed
        self.best = best
        """The best model by the metric of rs.Stop, with its round and value; None where no metric was given."""
        self.user_metrics = user_metrics
        """Each user's metrics on held-out data at the last evaluation, one row per user; None where there are none."""
        self.description = description or Description()
        """What the model needs to predict: a predictor and a preparation, or the names and shapes of a network."""
        self.config = config or {}
        """The run's settings, as sections of plain values."""
        self.folder = folder
        """Where the run lies on disk, if it was opened from there."""
        self._engine = engine
        self._arguments = arguments
        self._personal = personal
        self._remembered = remembered

    @property
    def model(self) -> Tensor:
        """The model (d,): mean(z) of the last round, or the average of past models where one was asked for."""
        return self.state.reported[0]

    @property
    def personal(self) -> Tensor:
        """Each user's latest local answer, (users, d). Users who share one u are asked once more."""
        state = self.state
        if isinstance(state.parts.meet, Spent):
            raise InputError("personal models of a private run are each user's own, and are not handed out")
        if self._personal is not None:
            return self._personal
        if not state.together or state.next is None or PERSONAL in state.memory:
            return state.memory.get(PERSONAL, state.p) if state.together else state.p
        users = self._users()
        if users is None:
            raise InputError(
                "personal models of users who share one vector need the users, and this run was saved without them: "
                "go on from its state with rs.solve(..., start=run.state)"
            )
        ask = Ask(state.round - 1, state.eta, None, self.seed)
        return users.local(ask, state.u, state.memory).p

    def _users(self) -> Engine | None:
        """The users of the run: of one of the command line, its configuration makes them again."""
        if self._engine is None and self.folder is not None:
            self._engine = resolve_name("resolvent.experiment.opening:users")(self.folder)
        return self._engine

    # --- predictions -------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> NDArray[Any]:
        """What the model predicts for each row of X: labels, or numbers.

        X: raw rows as the table had them (a frame, mappings, or an array) where the problem was made from one, else
        features; for a network, a batch of its inputs. One trained by a loss of torch's for classes returns the
        likeliest class, any other one its output.
        """
        return predicting.predict(self, X)

    def probabilities(self, X: Any) -> NDArray[Any]:
        """The probability of each class, (rows, classes), where the model has them."""
        return predicting.probabilities(self, X)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """The same, by the name that scikit-learn has for it."""
        return self.probabilities(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Accuracy of a classifier; R^2, or the share of the deviance that is explained, of a regression.

        A network classifies if it was trained by a loss of torch's for classes, or by its own on whole-numbered labels,
        which a batch X may have in it; targets that the loss ignores do not count.
        """
        return predicting.score(self, X, y)

    # --- networks ----------------------------------------------------------------------------------------------------

    def module(self, into: nn.Module | None = None, best: bool = False) -> nn.Module:
        """The trained network with its buffers; `best`: as it was in the best round by the metric of rs.Stop.

        into: a module of the same architecture, which a run that was opened from disk may need; it is changed.
        """
        if flag(best, "best") and self.best is None:
            refuse("best", "asked for", "the run was not given rs.Stop(metric=...), so no model is the best one")
        model = self.model if self.best is None or not best else self.best.model
        memory = self.state.memory if self.best is None or not best else self.best.memory
        problem = self._network()
        if into is None and problem is not None:
            return problem.module(model, memory)  # type: ignore[no-any-return]
        self._needs_network()
        if into is None and self.description.network.get("factory") is None and self._users() is not None:  # type: ignore[union-attr]
            return self.module(best=best)
        return resolve_name("resolvent.networks.rebuilding:loaded")(self.description, model, memory, into)  # type: ignore[no-any-return]

    def personal_module(self, user: int, into: nn.Module | None = None) -> nn.Module:
        """The network as this user trained it last."""
        users = len(self.personal)
        self._needs_network()
        if not 0 <= user < users:
            refuse("user", user, f"a number from 0 to {users - 1} is needed")
        problem = self._network()
        if into is None and problem is not None:
            return problem.module(self.personal[user], self.state.memory, user)  # type: ignore[no-any-return]
        loaded = resolve_name("resolvent.networks.rebuilding:loaded")
        return loaded(self.description, self.personal[user], self.state.memory, into, user)  # type: ignore[no-any-return]

    def _network(self) -> Any:
        """The problem of the run where it is one of networks, and its users are here."""
        facts = None if self._engine is None else self._engine.facts
        return facts.problem if facts is not None and "training" in facts.offers else None

    def _needs_network(self) -> None:
        if self.description.network is None:
            raise InputError("there is no network to hand back: the run is not one of rs.Neural")

    # --- on disk, and on the screen ----------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the run into a folder, from which `rs.open` reads it; an earlier run there is replaced."""
        return resolve_name("resolvent.runs.saving:save")(self, file_path(folder, "folder"))  # type: ignore[no-any-return]

    @staticmethod
    def load(folder: str | Path) -> Run:
        """What `save` or the command line wrote: the same as `rs.open`."""
        return resolve_name("resolvent.experiment.opening:open_run")(folder)  # type: ignore[no-any-return]

    def export(self, file: str | Path, into: nn.Module | None = None) -> Path:
        """Write the model with what it needs to predict: .safetensors, .pt, .npz, .json or .onnx.

        into: a module of the same architecture, which a network's .onnx of a run opened from disk may need.
        """
        return resolve_name("resolvent.experiment.exporting:export")(self, file_path(file, "file"), into)  # type: ignore[no-any-return]

    def resume(self, problem: Any = None, scheme: Any = None, *, rounds: int, **more: Any) -> Run:
        """Go on until `rounds` rounds are done in all: equal, to the bit, to a run of so many from the start.

        A run of the command line needs nothing else. One that `save` wrote needs its problem, its scheme, and what else
        `solve` was given. One that `solve` has just handed back goes on with what it was given.
        """
        return resolve_name("resolvent.experiment.opening:resume")(self, problem, scheme, rounds, more)  # type: ignore[no-any-return]

    def plot(self, y: Any = None, x: str = "round", ax: Any = None) -> Figure:
        """A Matplotlib figure of columns of the history: the gap or value, and metrics on held-out data."""
        return resolve_name("resolvent.report.plotting:plot")(self, y, x, ax)  # type: ignore[no-any-return]

    def _repr_png_(self) -> bytes | None:
        return resolve_name("resolvent.report.plotting:png")(self)  # type: ignore[no-any-return]

    def _repr_html_(self) -> str:
        return resolve_name("resolvent.report.plotting:html")(self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        rows = self.history[self.history["round"] == self.state.round] if len(self.history) else self.history
        own: dict[Any, Any] = of_reported(dict(rows.iloc[-1])) if len(rows) else {}
        figures = ", ".join(f"{name} {own[name]:.3g}" for name in ("value", "gap", "residual") if name in own)
        ended = f"{self.status} after {self.state.round} rounds ({self.reason})"
        if self.status == "diverged":
            ended = f"diverged ({self.reason}); the state after round {self.state.round}"
        return f"Run({self._what()}{ended}{'; ' if figures else ''}{figures})"

    def _what(self) -> str:
        """The scheme and the problem, in short."""
        scheme, problem = (self.config.get(name, {}) for name in ("scheme", "problem"))
        title, kind = scheme.get("title", scheme.get("algorithm")), self.description.kind or problem.get("name")
        if title is None or kind is None:
            return ""
        users = self.config["problem"].get("users", "?")
        return f"{title} on {kind}, {users} users, d = {len(self.model)}: "
