"""Tensors of torch as arrays of JAX, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import torch


def array(tensor: torch.Tensor) -> jax.Array:
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.detach().float().numpy(), jnp.bfloat16)
    return jnp.asarray(tensor.detach().numpy())


def tensor(array: jax.Array) -> torch.Tensor:
    dtype = torch.bfloat16 if array.dtype == jnp.bfloat16 else None
    return torch.from_numpy(np.array(array, np.float32 if dtype else None)).to(dtype)


def assert_close(got: jax.Array, want: torch.Tensor, share: float = 1e-6) -> None:
    """Equal to a share of the largest number."""
    torch.testing.assert_close(tensor(got), want.detach(), rtol=share, atol=share * want.abs().max().item())
