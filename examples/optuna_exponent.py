"""Search for exponent and learning rate with Optuna, which stops hopeless trials early.

python examples/optuna_exponent.py

pip install "harmax[sklearn]" optuna          the data is inside the wheel of scikit-learn: no download

Losses of different exponents can be compared, because each is a log-probability of the same labels. Search on the
logarithm of the exponent.
"""

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn

from harmax import HarmonicHead


def main(trials: int = 12, epochs: int = 10, verbose: bool = True) -> optuna.Study:
    """Run the search, print its best trial, and return it."""
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    fit, test = slice(0, 1297), slice(1297, None)

    def objective(trial: optuna.Trial) -> float:
        torch.manual_seed(0)
        exponent = trial.suggest_float("exponent", 0.5, 64, log=True)
        learning_rate = trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True)
        body = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32))
        head = HarmonicHead(32, 10, exponent=exponent)
        optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], learning_rate)
        loss = float("inf")
        for epoch in range(epochs):
            for rows in torch.randperm(1297).split(64):
                optimizer.zero_grad()
                head(body(x[fit][rows]), y[fit][rows]).backward()
                optimizer.step()
            with torch.no_grad():
                loss = float(head(body(x[test]), y[test]))
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    if not verbose:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=2)
    study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    study.optimize(objective, n_trials=trials)
    pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
    print(f"{pruned} of {len(study.trials)} trials were stopped early")
    print(f"best: loss {study.best_value:.3f} with {study.best_params}")
    return study


if __name__ == "__main__":
    main()
