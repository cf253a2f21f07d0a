"""How the paper's claims about n are judged: by what its runs at n = 1 to 10 have, on one task.

`names` maps each n to the arm that has its exponent. A difference that is one of several counts as clear where its
interval, at the level shared among them, lies on one side.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from harmax.analysis.arrays import rank_correlation
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.judges import both, everywhere, listed, shared_level, signed
from harmax_lab.kit.results import compare, interval
from harmax_lab.paper.readings import ALMOST_ALL_RUNS, CRISP, HIGHEST, MINOR
from harmax_lab.studies.compare_arms import Place, minus, numbers_of

Names = Mapping[int, str]
WORDS = {
    "structure": "Structure",
    "variance": "Explained variance",
    "accuracy": "Late test accuracy",
    "plane": "Structure in the plane",
}


def judge_crisp(place: Place, names: Names) -> Finding:
    """Judge whether almost all runs at every n show their structure in the plane of two components."""
    shares = {n: float(np.mean([one >= 1 - CRISP for one in _scores(place, "plane", arm)])) for n, arm in names.items()}
    listed_shares = listed({f"n = {n}": f"{100 * share:.0f} %" for n, share in shares.items()})
    sentence = f"Runs with a crisp {TITLES[place.tasks[0]].lower()}: {listed_shares}."
    return Finding(min(shares.values()) >= ALMOST_ALL_RUNS, sentence, {"least_share": min(shares.values())})


def judge_minor(place: Place, names: Names) -> Finding:
    """Judge whether the structure at every other n is within `MINOR` of that at n = 1."""
    sides = [_all_others(place, "structure", names, -side * MINOR, side) for side in (1, -1)]
    return Finding(both(*sides), _means(place, "structure", names), {})


def judge_best(place: Place, names: Names, score: str) -> Finding:
    """Judge whether n = 1 is highest: no other n is higher by more than `HIGHEST`, and one is lower by more."""
    unbeaten = _all_others(place, score, names, HIGHEST, -1)
    some_lower = True if _some_other(place, score, names, -HIGHEST, -1) else None
    return Finding(both(unbeaten, some_lower), _means(place, score, names), {})


def judge_benefit(place: Place, names: Names, *scores: str) -> Finding:
    """Judge whether some other n is clearly higher than n = 1, in each of some scores; broken if all are lower."""

    def gains(score: str) -> bool | None:
        if _some_other(place, score, names, 0.0, 1):
            return True
        return False if _all_others(place, score, names, 0.0, -1) else None

    return Finding(both(*map(gains, scores)), " ".join(_means(place, score, names) for score in scores), {})


def judge_trend(place: Place, arms: Iterable[str], score: str, *, falls: bool) -> Finding:
    """Judge whether a score falls, or rises, with the exponent: the rank correlation within a seed."""
    scores = {arm: place.per_seed({arm: 1.0}, score) for arm in arms if arm in place.arms}
    seeds = sorted(set.intersection(*map(set, scores.values())))
    exponents = np.array([float(arm) for arm in scores])
    correlation = interval(
        [rank_correlation(exponents, np.array([one[seed] for one in scores.values()])) for seed in seeds]
    )
    rises = correlation.above(0)
    means = listed({f"exponent {arm}": f"{np.mean(list(one.values())):.3f}" for arm, one in scores.items()})
    return Finding(
        None if rises is None else rises != falls,
        f"{WORDS[score]}, rank correlation with the exponent over {len(seeds)} seeds: {signed(correlation, 3)}. "
        f"Means: {means}.",
        {"correlation": correlation._asdict()},
    )


def judge_spread(places: Iterable[Place], names: Names) -> Finding:
    """Judge whether transformers lie farther from the mean of their n than MLPs do, averaged over n."""
    found = {place.model: _distances(place, names) for place in places if set(names.values()) <= set(place.arms)}
    if not all(found.get(model) for model in BODIES):
        return Finding(None, "Not every n was run with both models.", {})
    seeds = sorted(set.intersection(*map(set, found.values())))
    farther = compare(*([found[model][seed] for seed in seeds] for model in ("transformer", "mlp")))
    means = listed({BODIES[model]: str(interval(list(one.values()))) for model, one in found.items()})
    sentence = (
        f"Distance of a run's structure from the mean of its n: {means}; difference {signed(farther.difference, 3)}."
    )
    return Finding(farther.difference.above(0), sentence, {"difference": numbers_of(farther)})


def _scores(place: Place, score: str, arm: str) -> list[float]:
    return list(place.per_seed({arm: 1.0}, score).values())


def _means(place: Place, score: str, names: Names) -> str:
    means = {f"n = {n}": f"{np.mean(_scores(place, score, arm)):.3f}" for n, arm in names.items()}
    return f"{WORDS[score]}: {listed(means)}."


def _all_others(place: Place, score: str, names: Names, limit: float, side: int) -> bool | None:
    """Return whether every other n minus n = 1 lies above (side 1) or below (side -1) a limit."""
    others = [arm for n, arm in names.items() if n > 1]
    return everywhere(
        others, lambda arm, level: place.contrast(minus(arm, names[1]), score, limit, level), wanted=side
    ).holds


def _some_other(place: Place, score: str, names: Names, limit: float, side: int) -> bool:
    """Return whether some other n minus n = 1 clearly lies above (side 1) or below (side -1) a limit."""
    others = [arm for n, arm in names.items() if n > 1]
    found = [place.contrast(minus(arm, names[1]), score, limit, shared_level(len(others))) for arm in others]
    return any(one is not None and one.difference.above(0) is (side > 0) for one in found)


def _distances(place: Place, names: Names) -> dict[int, float]:
    """Return, by seed, how far the structure is from the mean over seeds, averaged over n."""
    far: dict[int, list[float]] = {}
    for arm in names.values():
        scores = place.per_seed({arm: 1.0}, "structure")
        for seed, score in scores.items():
            far.setdefault(seed, []).append(abs(score - float(np.mean(list(scores.values())))))
    return {seed: float(np.mean(found)) for seed, found in far.items()}
