"""What crosses the page's API, with bounds: pydantic models, from which the OpenAPI description is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from resolvent.iteration import registry
from resolvent.ui.examples import EXAMPLES, Sizes
from resolvent.ui.explorer import Setup

Number = float | None
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Value = bool | Whole | float | Annotated[str, Field(max_length=400)] | None
RunId = Annotated[str, Field(min_length=1, max_length=200)]


class Strict(BaseModel):
    """A body in which nothing may be misspelt."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RunRow(BaseModel):
    """A run in the table."""

    id: str
    title: str
    algorithm: str
    problem: str
    settings: str
    status: str
    reason: str
    created: str
    round: int
    rounds: int
    seed: int
    users: int
    dim: int
    value: Number
    gap: Number
    accuracy: Number
    seconds: Number
    colour: str


class RunList(BaseModel):
    folder: str
    runs: list[RunRow]


class Event(BaseModel):
    time: str
    kind: str
    words: str


class RunDetail(BaseModel):
    """One run: all that is known of it but its rows."""

    row: RunRow
    damage: list[str]
    explanation: str
    findings: list[str]
    config: dict[str, Any]
    toml: str
    environment: dict[str, Any]
    problem: dict[str, Any]
    forked: dict[str, Any] | None
    events: list[Event]


class Metrics(BaseModel):
    """Rows from number `start` on, as columns; `rows` is how many there are in all. Whoever gives `edition` back when
    asking for more is sent all rows again where a resumed run has cut some of them."""

    start: int
    rows: int
    edition: str
    columns: dict[str, list[Number]]


class Curve(BaseModel):
    label: str
    colour: str
    dash: str
    runs: list[str]


class Difference(BaseModel):
    key: str
    values: list[Value]


class Comparison(BaseModel):
    """Runs that differ by their seed alone are one curve; `different` are the settings that differ between runs."""

    runs: list[str]
    curves: list[Curve]
    different: list[Difference]
    damage: list[str]
    """A sentence on each run that cannot be read, which is left out."""


class Chosen(Strict):
    runs: Annotated[list[RunId], Field(min_length=1, max_length=200)]


class Start(Strict):
    """A configuration: sections of plain values, as in a TOML file."""

    config: Annotated[
        dict[Annotated[str, Field(max_length=40)], dict[Annotated[str, Field(max_length=40)], Value]],
        Field(max_length=12),
    ]


class JobRow(BaseModel):
    id: str
    run: str | None
    status: str
    words: str


class Presence(BaseModel):
    kind: str
    users: int
    first: int
    rounds: int
    who: list[str]


class Losses(BaseModel):
    losses: list[Number]
    names: list[str]
    round: int
    what: str
    words: str


if TYPE_CHECKING:
    ProblemName = str
    ScheduleName = str
else:
    ProblemName = Literal[tuple(EXAMPLES)]
    ScheduleName = Literal[tuple(registry.parts("schedule"))]


class Explore(Strict):
    """Where the explorer's sliders stand."""

    problem: ProblemName = "plane"
    users: Annotated[int, Field(ge=2, le=12)] = 5
    dim: Annotated[int, Field(ge=1, le=20)] = 8
    heterogeneity: Annotated[float, Field(ge=0, le=2)] = 0.5
    penalty: Annotated[float, Field(ge=0, le=20)] = 1.0
    seed: Annotated[int, Field(ge=0, le=10_000)] = 0
    alpha: Annotated[float, Field(ge=0, le=2)] = 2.0
    beta: Annotated[float, Field(ge=0, le=2)] = 2.0
    gamma: Annotated[float, Field(ge=0, le=2)] = 0.5
    eta: Annotated[float, Field(ge=1e-6, le=1e3)] = 0.5
    schedule: ScheduleName = "constant"
    forward: bool = False
    steps: Annotated[int, Field(ge=1, le=20)] = 1
    anderson: Annotated[int, Field(ge=0, le=10)] = 0
    participation: Annotated[float, Field(ge=0.05, le=1)] = 1.0
    absent: Literal["hold", "paper"] = "hold"
    delays: Annotated[float, Field(ge=1, le=20)] = 1.0
    rounds: Annotated[int, Field(ge=2, le=200)] = 60
    algorithm: Annotated[str, Field(max_length=40)] = ""

    def setup(self) -> Setup:
        asked = self.model_dump()
        own = {name: asked.pop(name) for name in ("users", "dim", "heterogeneity", "penalty", "seed")}
        return Setup(sizes=Sizes(**own), **asked)
