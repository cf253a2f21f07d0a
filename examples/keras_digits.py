"""A harmonic layer for Keras 3: a classifier of digits, trained by `fit`, saved and loaded.

python examples/keras_digits.py                           on torch
KERAS_BACKEND=jax python examples/keras_digits.py         on JAX

pip install "harmax[sklearn,jax]" keras       the data is inside the wheel of scikit-learn: no download

harmax has no module for Keras, because none is needed: tensors of Keras are those of torch or of JAX, and the functions
of `harmax` and of `harmax.jax` take them. On TensorFlow there is no such function.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from sklearn.datasets import load_digits

if keras.backend.backend() == "jax":
    from harmax.jax import harmonic_log_probabilities
elif keras.backend.backend() == "torch":
    from harmax.functional import harmonic_log_probabilities
else:
    raise SystemExit(f"KERAS_BACKEND must be torch or jax, got {keras.backend.backend()}; set it before the start.")


@keras.saving.register_keras_serializable("harmax")
class HarmonicLayer(keras.layers.Layer):
    """From features (..., D) to log-probabilities (..., V), which fall with a power of the distance to a center."""

    def __init__(self, classes: int, exponent: float, **options: Any) -> None:
        super().__init__(**options)
        self.classes, self.exponent = classes, exponent

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Make the centers, (V, D)."""
        self.centers = self.add_weight(shape=(self.classes, input_shape[-1]), name="centers")

    def call(self, features: Any) -> Any:
        """Return log-probabilities."""
        centers = keras.ops.convert_to_tensor(self.centers)
        return harmonic_log_probabilities(features, centers, exponent=self.exponent)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the log-probabilities."""
        return (*input_shape[:-1], self.classes)

    def get_config(self) -> dict[str, Any]:
        """Return what a saved model needs to build the layer again."""
        return {**super().get_config(), "classes": self.classes, "exponent": self.exponent}


def main(epochs: int = 15) -> dict[str, float]:
    """Train on 1297 digits, save and load the model, and return the accuracy of both on 500 others."""
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    body = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(32)]
    model = keras.Sequential([keras.Input((64,)), *body, HarmonicLayer(10, exponent=4.0)])
    # Log-probabilities are logits whose softmax they are.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.005), loss, metrics=["accuracy"])
    model.fit(x[:1297], y[:1297], batch_size=64, epochs=epochs, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.keras"
        model.save(path)
        loaded = keras.saving.load_model(path)
    found = {
        name: float(one.evaluate(x[1297:], y[1297:], verbose=0)[1])
        for name, one in (("trained", model), ("loaded", loaded))
    }
    print(f"{keras.backend.backend()}: {found['trained']:.1%} of 500 test digits right; loaded {found['loaded']:.1%}")
    return found


if __name__ == "__main__":
    main()
