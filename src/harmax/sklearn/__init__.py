"""Classifiers of scikit-learn whose classes are centers that a person can read.

    from harmax.sklearn import HarmonicClassifier, read_csv

    x, y = read_csv("flowers.csv", target="species")
    model = HarmonicClassifier(random_state=0).fit(x, y)
    print(model.centers_)
    print(model.explain(x.iloc[0]))

Needs `pip install "harmax[sklearn]"`.
"""

from harmax.errors import needs

with needs("sklearn"):
    from harmax.sklearn.abstention import AbstainRule
    from harmax.sklearn.classifier import HarmonicClassifier
    from harmax.sklearn.explanation import Explanation, NearRow, Reason
    from harmax.sklearn.figures import draw_centers, draw_regions
    from harmax.sklearn.search import FewRowsWarning
    from harmax.sklearn.table import read_csv

__all__ = [
    "AbstainRule",
    "Explanation",
    "FewRowsWarning",
    "HarmonicClassifier",
    "NearRow",
    "Reason",
    "draw_centers",
    "draw_regions",
    "read_csv",
]
