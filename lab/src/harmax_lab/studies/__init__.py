"""Is it the loss? Four studies on the five algorithmic tasks, read together in lab/results/is_it_the_loss.md.

`ablation` takes the loss apart (distance, normalizer), `confounds` changes what came with it (data, weight decay,
tying), `exponents` turns its one number, and the rivals (an experiment a model) hold it against other losses, each
tuned. outcomes.py says what a run is judged by and how arms are compared in all of them.
"""
