"""Is it the loss? Five studies on the five algorithmic tasks, read together in lab/results/is_it_the_loss.md.

`ablation` takes the loss apart (distance, normalizer). `confounds` changes what came with it (data, weight decay,
tying). `exponents` varies its one number. `authors_losses` is the paper's own comparison with other losses. `rivals`
(one experiment per model) compares it with losses of others, each tuned (tuned_losses.py).

Shared: score_runs.py says what a run is judged by, compare_arms.py how arms are compared and claims judged,
tables_and_figures.py what all of them show.
"""
