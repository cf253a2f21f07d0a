"""The Ray engine on several machines: raylets of their own on this one. One of them is killed while it computes."""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from harmax_lab.experiments import run
from harmax_lab.kit.engine import Event
from harmax_lab.kit.experiment import Cell, Context, Experiment, Spec, Work
from harmax_lab.kit.store import CellResult

NODE = {"num_cpus": 1, "object_store_memory": 2**27}
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")  # Ray takes 127.0.0.1 for another name of the machine


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three raylets with an address and a core each. The run is started on the first one, which must stay."""
    first, *others = ({**NODE, "node_ip_address": address} for address in ADDRESSES)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Cluster(initialize_head=True, head_node_args={**first, "include_dashboard": False})
    try:
        for node in others:
            nodes.add_node(**node)
        # Workers read this file to find what is in it.
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        options["_node_ip_address"] = ADDRESSES[0]
        ray.init(nodes.address, runtime_env={"env_vars": {"PYTHONPATH": path}}, **options)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@dataclass(frozen=True)
class PartCell(Cell):
    group: str
    seed: int


def cells_of(spec: Spec) -> list[PartCell]:
    return [PartCell(group, seed) for group in "abcd" for seed in spec.seeds]


def by_group(cell: PartCell) -> str:
    return cell.group


def run_cells(
    folder: Path, spec: Spec, cells: Sequence[PartCell], context: Context
) -> Iterator[tuple[PartCell, CellResult]]:
    """Write down who computes what. Second cells wait until a machine is killed; on that machine they never end."""
    node = ray.get_runtime_context().get_node_id()
    doomed = (folder / "doomed").read_text()
    for cell in cells:
        (folder / f"{cell.name} {node} {time.monotonic_ns()}").touch()
        while cell.seed == 1 and (node == doomed or not (folder / "killed").exists()):
            time.sleep(0.1)
        # So large that it stays in the memory of its machine until it is fetched.
        yield cell, CellResult(metrics={"node": node}, arrays={"x": np.full(2**17, cell.seed)})


@pytest.mark.slow
def test_the_cells_of_a_killed_machine_are_computed_on_the_others_and_each_once(
    tmp_path: Path, cluster: Cluster
) -> None:
    assert sorted(node["NodeManagerAddress"] for node in ray.nodes()) == list(ADDRESSES)
    seen = tmp_path / "seen"
    seen.mkdir()
    doomed = cluster.list_all_nodes()[-1]
    (seen / "doomed").write_text(doomed.node_id)

    def begun_there() -> list[str]:
        return [path.name.split()[0] for path in seen.iterdir() if doomed.node_id in path.name]

    def kill(event: Event) -> None:
        # Its first cell is stored, and it computes the second one.
        if not (seen / "killed").exists() and any(name.endswith("seed=1") for name in begun_there()):
            cluster.remove_node(doomed, allow_graceful=False)
            (seen / "killed").touch()
        messages.append(event.message)

    messages: list[str] = []
    spec = Spec(seeds=(0, 1, 2))
    experiment = Experiment(
        name="parts",
        title="Parts",
        figure="Fig. 0",
        claims=(),
        profiles=dict.fromkeys(("smoke", "quick", "full"), spec),
        work=Work(cells_of, partial(run_cells, seen), group=by_group),
    )
    result = run(experiment, engine="ray", folder=tmp_path / "runs", progress=kill)

    assert not result.failed, next(iter(result.failed.values()))
    assert not result.pending
    assert list(result.results) == [cell.name for cell in cells_of(spec)]
    assert all((found.arrays["x"] == int(name[-1])).all() for name, found in result.results.items())
    assert any("a machine is lost" in message for message in messages)
    begun = Counter(path.name.split()[0] for path in seen.iterdir() if " " in path.name)
    (lost,) = (name for name in begun_there() if name.endswith("seed=1"))
    # What the machine had finished is kept. What it was at is begun a second time, all else once.
    assert begun == {**dict.fromkeys(result.results, 1), lost: 2}
    first = lost.replace("seed=1", "seed=0")
    assert result.results[first].metrics["node"] == doomed.node_id
    assert result.results[lost].metrics["node"] != doomed.node_id
