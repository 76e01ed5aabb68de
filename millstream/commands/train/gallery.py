"""Output of a training run while it runs: sheets of samples as files, and losses and sheets in TensorBoard if
there."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from millstream.core.files import Staging
from millstream.train.loop import StepReport
from millstream.video.picture import png

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Gallery:
    def __init__(self, run: Path) -> None:
        self._samples = run / "samples"
        self._board = _board(run / "board")

    def __enter__(self) -> Gallery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()

    def add_losses(self, stage: str, report: StepReport) -> None:
        if self._board is not None:
            for name, value in (report.losses | {"lr": report.lr}).items():
                self._board.add_scalar(f"{stage}/{name}", value, report.step)

    def add_sheet(self, stage: str, step: int, sheet_HW3: np.ndarray) -> None:
        self._samples.mkdir(parents=True, exist_ok=True)
        with Staging(self._samples) as staging:
            staging.path(f"{stage}-{step:06d}.png").write_bytes(png(sheet_HW3))
        if self._board is not None:
            self._board.add_image(stage, sheet_HW3, step, dataformats="HWC")


def _board(folder: Path) -> SummaryWriter | None:
    """None where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
