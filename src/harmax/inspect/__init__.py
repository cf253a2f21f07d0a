"""Tools to look at a trained model: class centers, nearest images, word pairs, token centers, layers.

Measuring functions take numpy arrays or torch modules and return plain arrays or values. Figures are separate: the
`draw_*` functions of `prototype_figures` and `word_figures` take these arrays. matplotlib and transformers are only
imported when a figure is drawn or a model is loaded.

    prototypes.py          a classifier's nearest centers, nearest images and features
    classifiers.py         all of it for the classifier in a run folder: what `harmax prototypes` does
    embedding.py           a language model's embedding: parallelograms of word pairs, the cloud of token centers
    layers.py              the same word pairs in the states of a language model's layers
    geometry.py            all of it for any causal language model: what `harmax geometry` does
    language_models.py     loads language models and their vocabularies
    explorer/              one page to touch: what `harmax explore` does
    sources.py             folders that these commands read, and how a package adds its own kinds of folders

>>> from harmax import HarmonicHead
>>> import numpy as np
>>> view = prototype_view(np.zeros((1, 4), np.float32), HarmonicHead(4, 3))
>>> view.winner.shape, bool(view.ratio[0] <= 1)
((1,), True)
"""

from harmax.inspect.classifiers import (
    draw_classifier,
    inspect_classifier,
    open_classifier,
    summarize_classifier,
)
from harmax.inspect.embedding import embedding_of, measure_embedding
from harmax.inspect.geometry import MeasuredModel, compare_measured, draw_measured, measure_model, summarize_model
from harmax.inspect.language_models import load_language_model, load_vocabulary
from harmax.inspect.layers import mean_cosine, measure_layers
from harmax.inspect.prototype_figures import draw_abstention, draw_centers, draw_decisions, draw_nearest
from harmax.inspect.prototypes import (
    NearestImages,
    PrototypeView,
    center_pictures,
    head_features,
    nearest_images,
    prototype_view,
)
from harmax.inspect.sources import Classifier, Source

__all__ = [
    "Classifier",
    "MeasuredModel",
    "NearestImages",
    "PrototypeView",
    "Source",
    "center_pictures",
    "compare_measured",
    "draw_abstention",
    "draw_centers",
    "draw_classifier",
    "draw_decisions",
    "draw_measured",
    "draw_nearest",
    "embedding_of",
    "head_features",
    "inspect_classifier",
    "load_language_model",
    "load_vocabulary",
    "mean_cosine",
    "measure_embedding",
    "measure_layers",
    "measure_model",
    "nearest_images",
    "open_classifier",
    "prototype_view",
    "summarize_classifier",
    "summarize_model",
]
