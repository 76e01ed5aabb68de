"""A run that stops goes on to the same bits, and on any other plan to the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from millstream.core.errors import WeightsError
from millstream.train.parallel.digested import SUFFIX
from millstream.train.parallel.plan import ParallelPlan
from tests.dist.ranks import run_on_kept_ranks
from tests.soak.train_equality import Trained, difference, train

PLANS = {
    "one process": ParallelPlan(),
    "data 2": ParallelPlan(dp=2),
    "ZeRO 2, 4": ParallelPlan(dp=4, data="zero2"),
    "ZeRO 3, 2": ParallelPlan(dp=2, data="zero3"),
    "FSDP2 2": ParallelPlan(dp=2, data="fsdp"),
    "FSDP2 x tensor": ParallelPlan(dp=2, tp=2, data="fsdp"),
    "tensor 2": ParallelPlan(tp=2),
    "context 2": ParallelPlan(cp=2),
    "pipeline": ParallelPlan(pp=2, schedule="zbv", micro_batches=4),
}


def trained(plan: ParallelPlan, steps: int, folder: Path, model: str = "tiny") -> Trained:
    """Up to so many steps, from where the folder's newest checkpoint was."""
    if plan.world_size == 1:
        return train(0, model, plan, steps, folder)
    return run_on_kept_ranks(train, plan.world_size, model, plan, steps, folder)[0]


def whole_and_half(rank: int, model: str, plan: ParallelPlan, folder: Path) -> tuple[Trained, Trained]:
    """Three steps at a stretch, and two that are kept."""
    return train(rank, model, plan, 3), train(rank, model, plan, 2, folder)


@pytest.mark.parametrize("name", PLANS)
def test_a_run_that_stops_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    model = "two-blocks" if plan.pp == 1 else "tiny"
    [(whole, first), *_] = run_on_kept_ranks(whole_and_half, plan.world_size, model, plan, tmp_path)
    second = trained(plan, 3, tmp_path, model)
    assert first.losses + second.losses == whole.losses
    assert all(torch.equal(second.weights[key], weight) for key, weight in whole.weights.items())


def test_a_run_goes_on_with_other_ranks_and_other_ways_of_sharing(tmp_path: Path) -> None:
    alone = trained(PLANS["one process"], 10, tmp_path / "alone")
    folder = tmp_path / "shared"
    losses = list[float]()
    norms = list[float]()
    order = ["FSDP2 2", "tensor 2", "ZeRO 2, 4", "pipeline", "one process"]
    for steps, name in enumerate(order, start=1):
        found = trained(PLANS[name], 2 * steps, folder)
        losses += found.losses
        norms += found.norms
    assert difference(Trained(losses, found.weights, norms), alone) < 1e-5


def test_a_checkpoint_of_another_model_is_told_in_a_line(tmp_path: Path) -> None:
    train(0, "two-blocks", ParallelPlan(), 2, tmp_path)
    with pytest.raises(WeightsError, match="of another model"):
        train(0, "brook-size", ParallelPlan(), 4, tmp_path)


def test_the_last_few_are_kept_and_what_is_half_written_is_not_one(tmp_path: Path) -> None:
    plan = ParallelPlan()
    model = "two-blocks"
    last = tmp_path / "step-00000012"
    trained(plan, 10, tmp_path, model)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000006",
        "step-00000008",
        "step-00000010",
    ]
    (tmp_path / ".step-00000012").mkdir()
    assert trained(plan, 12, tmp_path, model).losses, "it went on from the tenth"
    digests = {path: path.read_bytes() for path in last.glob(f"*{SUFFIX}")}
    for damage in ("half", "unlink", "truncate"):
        for file in set(last.iterdir()) - digests.keys():
            left = {"half": file.stat().st_size // 2, "truncate": 50}
            file.unlink() if damage == "unlink" else file.write_bytes(file.read_bytes()[: left[damage]])
        with pytest.raises(
            WeightsError, match=r"step-00000012 has changed since it was written \(.metadata, __0_0.distcp\)"
        ):
            trained(plan, 14, tmp_path, model)
        for digest in digests:
            digest.unlink()
        with pytest.raises(WeightsError, match=r"step-00000012 .*half written, or of another model"):
            trained(plan, 14, tmp_path, model)
        for digest, text in digests.items():
            digest.write_bytes(text)
        (last / ".metadata").write_bytes(b"")
