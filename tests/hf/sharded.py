"""Two processes train a harmonic model that FSDP2 shards; run by a test: python -m hf.sharded RENDEZVOUS."""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from harmax.hf import harmonize
from hf.zoo import batch, plain
from leaving import leave

LAYERS = {"llama": lambda model: model.model.layers, "bert": lambda model: model.bert.encoder.layer}


def sharded(name: str, tied: bool):
    model = harmonize(plain(name, tied=tied), exponent=24).train()
    for layer in LAYERS[name](model):
        fully_shard(layer, reshard_after_forward=True)
    if not tied:
        fully_shard(model.harmonic_head, reshard_after_forward=True)
    return fully_shard(model)


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    warnings.filterwarnings("error", message=".*returned a view tensor.*")
    lines = []
    for name, tied in (("llama", False), ("llama", True), ("bert", False)):
        inputs = batch(name, rows=4)
        inputs["labels"] = inputs["input_ids"]
        whole = harmonize(plain(name, tied=tied), exponent=24).train()
        expected = whole(**inputs).loss
        expected.backward()
        model = sharded(name, tied)
        loss = model(**{key: value[2 * rank : 2 * rank + 2] for key, value in inputs.items()}).loss
        loss *= 3  # in place, as the Trainer does
        loss.backward()
        mean = loss.detach() / 6
        dist.all_reduce(mean)
        gradient, its = model.harmonic_head.weight.grad.full_tensor() / 3, whole.harmonic_head.weight.grad
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        lines.append(
            [mean.item(), expected.item(), (gradient - its).abs().max().item(), its.abs().max().item(), len(state)]
        )
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(lines))
    leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.spawn(work, (sys.argv[1],), nprocs=2)
