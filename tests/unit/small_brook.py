"""Brook with every part there and none as large as it is: for runs that are tried from end to end."""

from __future__ import annotations

from dataclasses import replace

from millstream.core.config import BrookTextConfig, BrookVAEConfig
from millstream.core.presets import MODELS

BROOK = MODELS["brook"]
SMALL_BROOK = replace(
    BROOK,
    dit=replace(BROOK.dit, layers=2, width=64, heads=2, ffn=96, text_width=32),
    vae=BrookVAEConfig(widths=(32, 16, 8), blocks=(1, 1, 1)),
    text=BrookTextConfig(width=32, layers=1, heads=2),
    stream=replace(BROOK.stream, height=64, width=64),
)
