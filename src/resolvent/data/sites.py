"""One table whose rows lie at several sites: what each reports of its own file, and the preparation that follows.

A site reports the names and kinds of its columns, counts, means and spreads of numbers, and how often each category
occurs, all of its training rows. The reports are merged as those of users in one process are, so that the preparation
is that of one table with all rows in it. A site whose columns do not fit is refused by name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from statistics import median, median_high, median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data import coding, fitted, reports
from resolvent.data import target as targets
from resolvent.data.by_user import check_features, feature_names
from resolvent.data.columns import NUMBER, TEXT, Column, as_frame, column, word
from resolvent.data.dividing import TooFewRows, divided
from resolvent.data.limits import check_dense
from resolvent.data.preparation import Feature, Preparation
from resolvent.data.scaling import Moments, merged, moments
from resolvent.errors import InputError, quoted, refuse
from resolvent.problems.row_weights import BALANCED

MAX_COLUMNS, MAX_LEVELS, MAX_TEXT = 10_000, 10_000, 200
"""Of what a site reports: columns, categories of one, and characters of a name."""
MAX_HINTS = 20
"""Missing columns of which is looked for what may be meant: a sentence has no room for more."""
TIMES, SPREADS = 3.0, 5.0
"""A column is pointed out where a site's mean and spread are both so many times the others', or where its mean is so
many spreads away."""


@dataclass(frozen=True)
class Terms:
    """What the table is to become: the section [data], the same at every site. None: as it is usual."""

    target: str
    problem: str = "auto"
    user_column: str | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    impute: str | None = None
    test: float | None = None
    positive: str | float | None = None
    standardise: bool = True
    intercept: bool = True
    reg: float | None = None
    class_weight: str | None = None
    seed: int = 0

    @property
    def needs(self) -> str | None:
        """What the problem needs of its labels; None where these decide."""
        return None if self.problem == "auto" else fitted.KINDS[fitted.kind_name(self.problem, None)].needs

    @property
    def fills(self) -> reports.Impute:
        """How missing values are filled, by column where columns were named."""
        if self.impute is None or "=" not in self.impute:
            return self.impute
        pairs = [pair.rpartition("=") for pair in self.impute.split(",")]
        return {name.strip(): kind.strip() for name, _, kind in pairs}

    def check(self) -> None:
        """Refuse what no federation can do: a median of numbers takes every value, and only sums leave a site."""
        fills = self.fills
        kinds = fills.values() if isinstance(fills, Mapping) else [fills]
        if "median" in kinds:
            refuse("data.impute", quoted(self.impute), "a median needs every value, and only sums leave a site: mean")
        if self.test is not None and not 0 < self.test < 1:
            refuse("data.test", quoted(self.test), "a share of the rows is needed, between 0 and 1, such as 0.2")
        fitted.kind_name(self.problem, targets.Target(self.target))
        if self.class_weight is not None:
            targets.class_weights(self.class_weight, "data.class_weight")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON hands them back."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Terms:
        given: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in told.items()}
        return cls(**given)


# --- at a site -------------------------------------------------------------------------------------------------------


class SiteTable:
    """A site's own rows: what it reports of them, and what they are once a preparation is agreed on."""

    def __init__(self, given: Any, terms: Terms) -> None:
        terms.check()
        frame = as_frame(given)
        frame = frame.drop(columns=[name for name in (terms.user_column, *terms.drop) if name in frame.columns])
        self.terms, self._frame = terms, frame
        categories = [name for name in terms.categories if name in frame.columns]
        names = feature_names(frame, None, terms.target, (), categories)
        named = terms.fills if isinstance(terms.fills, Mapping) else {}
        reports.check(terms.fills, [*names, *named])
        self._columns = coding.coded_columns(frame, names, terms.fills, categories, "[data] of federation.toml")
        self._labels = column(frame, terms.target)
        classes = self._classes()
        codes = self._labels.numbers if classes is None else self._labels.texts
        grouped = [raw.texts for raw in self._columns if raw.kind == TEXT] + ([] if classes is None else [codes])
        every = {"here": np.arange(len(frame))}
        try:
            self._division = divided(every, terms.test, (), terms.seed, grouped)
        except TooFewRows:  # a small site trains with all it has
            self._division = divided(every, None, (), terms.seed, grouped)

    @property
    def training(self) -> NDArray[np.int64]:
        return self._division.training[0]

    @property
    def held_out(self) -> NDArray[np.int64]:
        return self._division.held_out[0] if self._division.held_out else np.zeros(0, np.int64)

    def _classes(self) -> tuple[Any, ...] | None:
        """The different labels, where they are or may be classes; None: they are numbers, and stay here."""
        labels, terms = self._labels, self.terms
        targets.check_present(labels)
        classes = targets.classes_of(labels)
        maybe = labels.kind != NUMBER or terms.positive is not None or len(classes) <= 2
        needed = terms.needs in (targets.TWO, targets.MANY)
        if not (needed or (terms.needs is None and maybe)):
            targets.check_numbers(labels)
            return None
        if len(classes) > targets.MAX_CLASSES:
            refuse(
                "target", f"{labels.name!r} with {len(classes)} classes", f"at most {targets.MAX_CLASSES} are needed"
            )
        return classes

    def report(self) -> dict[str, Any]:
        """What leaves this site before the first round."""
        about = [self._about(raw) for raw in self._columns]
        classes = self._classes()
        labels: dict[str, Any] = {"kind": self._labels.kind, "classes": None if classes is None else list(classes)}
        if classes is None:
            labels |= _told(moments(self._labels.numbers[self.training][:, None]))
        elif self.terms.class_weight == BALANCED:
            here = Counter(self._labels.texts[self.training])
            labels["counts"] = [here[word(label)] for label in classes]
        rows = {"rows": len(self.training), "held_out": len(self.held_out)}
        return {"terms": self.terms.as_dict(), "columns": about, "labels": labels, **rows}

    def _about(self, raw: Column) -> dict[str, Any]:
        (present,) = reports.present_values(raw, [self.training])
        if raw.kind == TEXT:
            return {"name": raw.name, "kind": TEXT, "levels": dict(sorted(Counter(present.tolist()).items()))}
        return {"name": raw.name, "kind": raw.kind} | _told(moments(present[:, None]))

    def features(self, preparation: Preparation) -> NDArray[np.float64]:
        """(rows, d), in the order that was agreed on. A preparation of other columns is refused: no site sends more."""
        mine = {raw.name: raw for raw in self._columns}
        names = [feature.name for feature in preparation.columns]
        if sorted(names) != sorted(mine) or preparation.target.name != self.terms.target:
            refuse("the schema", "of other columns than those of this site", "the server must agree with its sites")
        if any(of.levels is not None and (raw := mine[of.name]).kind != TEXT and not raw.missing.all()
               for of in preparation.columns):  # fmt: skip
            refuse("the schema", "one that counts every value of numbers", "only of text do categories leave a site")
        check_dense(len(self._frame), len(preparation.features), "the table")
        return preparation.scaled(preparation.matrix([mine[name] for name in names]))

    def moments(self, preparation: Preparation) -> dict[str, Any]:
        """Counts, means and spreads of the features, which were filled and coded as agreed."""
        return _told(moments(self.features(preparation)[self.training]))

    def codes(self, preparation: Preparation) -> NDArray[np.float64]:
        return preparation.target.encode(self._labels)

    def problem(self, preparation: Preparation, users: int) -> Any:
        """This site's function among those of `users` sites."""
        kind, terms = fitted.kind_name(self.terms.problem, preparation.target), self.terms
        more: dict[str, Any] = {"intercept": True} if terms.intercept else {}
        if kind == "softmax":
            more["classes"] = [float(k) for k in range(len(preparation.classes or ()))]
        rows, codes = self.training, self.codes(preparation)[self.training]
        mass: float = len(rows)
        if (weights := preparation.target.weights) is not None:
            more["class_weight"] = weights
            mass = float(np.array(weights)[((codes + 1) / 2 if preparation.target.two else codes).astype(int)].sum())
        if kind not in ("least-squares", "quantile"):
            more["reg"] = 1 / (users * mass) if terms.reg is None else terms.reg
        elif terms.reg is not None:
            refuse("data.reg", terms.reg, f'{kind} has none: set penalty = "l2:T" in [federation]')
        made = fitted.KINDS[kind].build([self.features(preparation)[rows]], [codes], **more)
        made.preparation = preparation
        return made


def _told(found: Moments) -> dict[str, Any]:
    return {field.name: getattr(found, field.name).tolist() for field in fields(found)}


# --- between sites ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reported:
    """What a site has said, checked: its columns by name, in its order."""

    kinds: Mapping[str, str]
    moments: Mapping[str, Moments]
    levels: Mapping[str, Counter[str]]
    labels: str
    classes: tuple[Any, ...] | None
    counts: tuple[int, ...]
    """How many training rows each class has, where classes are to be balanced."""
    label_moments: Moments | None
    rows: int
    held_out: int
    terms: Terms

    @classmethod
    def of(cls, told: Any) -> Reported:
        """From JSON; ValueError where it is no report."""
        try:
            columns, labels = told["columns"], told["labels"]
            if not 0 < len(columns) <= MAX_COLUMNS:
                raise ValueError("its columns are none, or too many")
            names = [_name(each["name"]) for each in columns]
            kinds = {name: _kind(each["kind"]) for name, each in zip(names, columns, strict=True)}
            if len(kinds) < len(names):
                raise ValueError("two of its columns have the same name")
            rows, held_out = (_count(told[name]) for name in ("rows", "held_out"))
            numbers = {each["name"]: moments_of(each, 1, rows) for each in columns if each["kind"] != TEXT}
            levels = {each["name"]: _levels(each["levels"], rows) for each in columns if each["kind"] == TEXT}
            classes = None if labels["classes"] is None else tuple(map(_label, labels["classes"]))
            own = moments_of(labels, 1, rows) if classes is None else None
            counts = tuple(map(_count, labels.get("counts", ())))
            if not rows or (classes is not None and not 0 < len(classes) <= targets.MAX_CLASSES):
                raise ValueError("it has no rows, or too many classes")
            terms = Terms.from_dict(told["terms"])
            if len(counts) != (len(classes or ()) if terms.class_weight == BALANCED else 0):
                raise ValueError("it has no number of rows for each class")
            if counts and sum(counts) != rows:
                raise ValueError("its classes have other rows than it has")
            return cls(kinds, numbers, levels, _kind(labels["kind"]), classes, counts, own, rows, held_out, terms)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no report ({type(error).__name__})") from None

    def has(self, name: str) -> bool:
        """Whether the site has any value in this column."""
        return bool(self.levels[name].total() if name in self.levels else self.moments[name].n[0])


def moments_of(told: Mapping[str, Any], columns: int, rows: int) -> Moments:
    """Moments that a site with so many rows reports; ValueError where they are none."""
    parts = []
    for name in ("n", "mean", "rest", "root"):
        given = told[name]
        if len(given) != columns or not all(type(x) is float and math.isfinite(x) for x in given):
            raise ValueError(f"{name} is not made of {columns} finite numbers")
        parts.append(np.array(given, np.float64))
    if (parts[0] < 0).any() or (parts[3] < 0).any():
        raise ValueError("a count or a spread is negative")
    if (parts[0] > rows).any() or (abs(parts[2]) > np.finfo(np.float64).eps * abs(parts[1])).any():
        raise ValueError("a count is above that of its rows, or the rounding of a mean is none")
    return Moments(*parts)


def _name(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_TEXT:
        raise ValueError(f"a name is no text of at most {MAX_TEXT} characters")
    return value


def _label(value: Any) -> Any:
    if type(value) not in (str, int, float, bool) or len(str(value)) > MAX_TEXT:
        raise ValueError("a class is no label")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError("a count is no whole number")
    return value


def _kind(value: Any) -> str:
    if value not in ("number", "boolean", "text"):
        raise ValueError("a column is of no known kind")
    return str(value)


def _levels(told: Any, rows: int) -> Counter[str]:
    if len(told) > MAX_LEVELS:
        raise ValueError(f"a column has more than {MAX_LEVELS} categories")
    levels = Counter({_name(level) if level else level: _count(n) for level, n in told.items()})
    if levels.total() > rows or 0 in levels.values():
        raise ValueError("categories have more rows than there are, or none")
    return levels


@dataclass(frozen=True)
class Merged:
    """What all sites together say: the preparation before any scaling, and what must be pointed out."""

    preparation: Preparation
    remarks: tuple[str, ...]


def merge(sites: Mapping[str, Reported], terms: Terms) -> Merged:
    """The preparation of the table of all sites; all complaints are made in one sentence, by site and column."""
    _check_terms(sites, terms)
    complaints = [*_wrong_columns(sites), *_wrong_kinds(sites), *_wrong_classes(sites, terms)]
    if complaints:
        raise InputError(f"the sites' tables do not fit together: {'; '.join(complaints)}")
    first = next(iter(sites.values()))
    columns = [_feature(name, sites, terms) for name in first.kinds]
    target = _target(sites, terms)
    if terms.class_weight is not None:
        target = replace(target, weights=_weights(target, sites, terms.class_weight))
    preparation = Preparation(tuple(columns), target, None, terms.drop, terms.user_column)
    check_features(preparation.features)
    hints = [coding.by_name([name for name, kind in first.kinds.items() if kind == NUMBER])]
    hints += [coding.alike(feature.name, feature.levels or ()) for feature in columns]
    return Merged(preparation, (*filter(None, hints), *_implausible(sites, terms)))


def _check_terms(sites: Mapping[str, Reported], terms: Terms) -> None:
    """Every site goes by its own copy of [data]: no server can ask for columns that its owner does not know of."""
    for name, site in sites.items():
        for key, mine in terms.as_dict().items():
            if (theirs := site.terms.as_dict()[key]) != mine:
                what = f"{quoted(theirs)} on {name}, but {quoted(mine)} on the server"
                raise InputError(f"data.{key} is {what}; copy the server's federation.toml to that site")


def _wrong_columns(sites: Mapping[str, Reported]) -> list[str]:
    """Who lacks what most others have, and who has what most others lack."""
    common = _common(sites)
    said: list[str] = []
    others = {site: [name for name in report.kinds if name not in common] for site, report in sites.items()}
    for name in dict.fromkeys(name for site in sites.values() for name in site.kinds):
        there = [site for site, report in sites.items() if name in report.kinds]
        away = [site for site in sites if site not in there]
        if not away:
            continue
        if len(there) > len(away):
            near = {s: get_close_matches(name, others[s], 1) if len(said) < MAX_HINTS else [] for s in away}
            where = [f"{s} (is it {found[0]!r} there?)" if (found := near[s]) else s for s in away]
            said.append(f"column {name!r} is missing on {', '.join(where)}")
        else:
            way = f"name it in data.drop, or add it on {', '.join(away)}"
            said.append(f"column {name!r} is on {', '.join(there)} but not on {', '.join(away)}: {way}")
    return said


def _common(sites: Mapping[str, Reported]) -> set[str]:
    return set.intersection(*(set(report.kinds) for report in sites.values()))


def _wrong_kinds(sites: Mapping[str, Reported]) -> list[str]:
    """Who has text where most others have numbers, and so on. A column without any value is of every kind."""
    said = []
    for name in _common(sites):
        kinds = {site: report.kinds[name] for site, report in sites.items() if report.has(name)}
        usual = Counter(kinds.values()).most_common(1)
        for site, kind in kinds.items():
            if kind != usual[0][0]:
                said.append(f"column {name!r} is {kind} on {site}, but {usual[0][0]} on most others")
    labels = Counter(report.labels for report in sites.values()).most_common(1)[0][0]
    for site, report in sites.items():
        if report.labels != labels:
            said.append(f"the target is {report.labels} on {site}, but {labels} on most others")
    return sorted(said)


def _wrong_classes(sites: Mapping[str, Reported], terms: Terms) -> list[str]:
    """Where the sites do not mean the same by their labels: yes here, Yes or 1 there."""
    own = {site: report.classes for site, report in sites.items() if report.classes is not None}
    if len({report.labels for report in sites.values()}) > 1:
        return []  # which is said already
    every = {word(label) for classes in own.values() for label in classes}
    shown = "; ".join(f"{coding.listed(classes)} on {site}" for site, classes in own.items())
    if (twice := coding.spelled_alike(every)) is not None:
        return [f"the target's classes {twice} differ in spelling alone ({shown})"]
    if terms.problem == "auto" and len(own) == len(sites) and len(every) > 2 >= max(map(len, own.values())):
        way = "code them alike, or say in data.problem what is meant"
        return [f"the target has two classes at most at each site, but {len(every)} in all ({shown}): {way}"]
    return []


def _feature(name: str, sites: Mapping[str, Reported], terms: Terms) -> Feature:
    """How a column is coded, from what all sites report."""
    holders = [report for report in sites.values() if report.has(name)]
    if not holders:
        refuse("column", repr(name), "no site has a value there: drop it")
    text = name in holders[0].levels
    asked = terms.fills.get(name) if isinstance(terms.fills, Mapping) else terms.fills
    if text:
        counts: Counter[str] = sum((report.levels[name] for report in holders), Counter())
        most = max(counts.values())
        filled = asked == "most_frequent" or (asked is not None and not isinstance(terms.fills, Mapping))
        fill = min(level for level, n in counts.items() if n == most) if filled else None
        return Feature(name, tuple(sorted(counts)), fill)
    total = merged(report.moments[name] for report in sites.values() if name in report.moments)
    if asked == "most_frequent":
        refuse(
            "data.impute", quoted(terms.impute), f"{name!r} holds numbers, and only sums leave a site: mean is needed"
        )
    return Feature(name, None, None if asked is None else float(total.mean[0]))


def _target(sites: Mapping[str, Reported], terms: Terms) -> targets.Target:
    """What the labels of all sites are."""
    numbers = all(report.labels == NUMBER for report in sites.values())
    if any(report.classes is None for report in sites.values()):
        needs = terms.needs if terms.needs in (targets.NUMBERS, targets.COUNTS) else targets.NUMBERS
        return targets.meaning(terms.target, (), numbers, needs, terms.positive)
    every = {label for report in sites.values() for label in report.classes or ()}
    classes = tuple(sorted(every, key=lambda label: (isinstance(label, str), label)))
    return targets.meaning(terms.target, classes, numbers, terms.needs, terms.positive)


def _weights(target: targets.Target, sites: Mapping[str, Reported], asked: str) -> tuple[float, ...]:
    """Of the classes: as they are given, or in inverse proportion to how many rows all sites have of each."""
    by_label = targets.class_weights(asked, "data.class_weight")
    if target.classes is None:
        refuse("data.class_weight", quoted(asked), "the target holds numbers, and only classes have such weights")
    if isinstance(by_label, dict):
        own = target.by_code(by_label)
        return tuple(own.get(2 * k - 1 if target.two else k, 1.0) for k in range(len(target.classes)))
    total = np.zeros(len(target.classes))
    for report in sites.values():
        for label, n in zip(report.classes or (), report.counts, strict=True):
            total[target.places[word(label)]] += n
    return tuple((total.sum() / (total > 0).sum() / np.where(total > 0, total, 1)).tolist())


def _implausible(sites: Mapping[str, Reported], terms: Terms) -> list[str]:
    """Columns of numbers whose mean at one site is far from all others', as in other units, with the numbers."""
    said = []
    columns = {name: {s: r.moments[name] for s, r in sites.items() if name in r.moments} for name in _common(sites)}
    columns[terms.target] = {s: r.label_moments for s, r in sites.items() if r.label_moments is not None}
    for name, own in columns.items():
        known = {s: (float(m.mean[0]), float(m.spread[0])) for s, m in own.items() if m.n[0] > 1 and m.spread[0] > 0}
        odd = [s for s in known if len(known) > 1 and _odd(known[s], [k for other, k in known.items() if other != s])]
        for site in odd[-1:] if len(known) == 2 else odd:  # of two sites, either may be the odd one
            means, spreads = zip(*(k for other, k in known.items() if other != site), strict=True)
            mine = f"{known[site][0]:.4g} (spread {known[site][1]:.3g}) on {site}"
            rest = f"{median(means):.4g} (spread {median(spreads):.3g}) on the others"
            said.append(f"the mean of {name!r} is {mine}, but {rest}: other units?")
    return sorted(said)


def _odd(mine: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Whether a mean and a spread are far from those of the others: many times as large, or many spreads away.

    Of an even number of others, from both medians: one of them alone shifts no median.
    """
    for middle in (median_low, median_high):
        mean, spread = (middle(column) for column in zip(*others, strict=True))
        larger = [mine[0] / mean if mean else math.inf, mine[1] / spread]
        times = all(x > TIMES for x in larger) or all(0 < x < 1 / TIMES for x in larger)
        if not (times or abs(mine[0] - mean) > SPREADS * max(mine[1], spread)):
            return False
    return True
