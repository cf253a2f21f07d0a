"""Classifiers for a person's own folder of pictures: what `harmax vision pictures` trains.

settings.py    what can be set, and how the rest follows from the pictures
backbones.py   networks that were trained by others
features.py    what a frozen network computes, kept between runs
head.py        a harmonic head on these features: its exponent and its length of training
tuning.py      training the whole network a little further
model.py       the classifier: saved, loaded, asked
train.py       all of it in one piece
"""

from harmax.train.pictures.settings import PicturesSpec

__all__ = ["PicturesSpec"]
