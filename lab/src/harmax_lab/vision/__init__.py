"""Classifiers of images: one layer on pixels, with weights that can be looked at."""
