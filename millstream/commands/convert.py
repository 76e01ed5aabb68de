"""`millstream convert`: weights in our layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from millstream.commands.options import Lora, parse_lora, with_options


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Choose the checkpoint to rewrite, and the folder to write."""

    source: Annotated[
        Path, typer.Argument(help="A checkpoint file or folder: original Wan, diffusers, .pt, .safetensors.")
    ]
    target: Annotated[Path, typer.Argument(help="Folder to write sharded safetensors and a config to.")]
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Which model it is, if shapes do not tell.", show_default=False),
    ] = None
    lora: Lora = None
    ema: Annotated[bool, typer.Option(help="Prefer averaged weights where a file has both.")] = True


@with_options
def convert(options: ConvertOptions) -> None:
    """Rewrite weights in our layout, and name every key that is missing, unexpected or of another shape.

    Call it once per file to gather DiT, VAE and text encoder in one folder.
    """
    from millstream.models.weights.convert import convert as convert_weights

    loras = [(Path(path), scale) for path, scale in map(parse_lora, options.lora or ())]
    report = convert_weights(
        options.source, options.target, model=options.model, loras=loras, prefer_ema=options.ema
    )
    for line in report.lines():
        typer.echo(line)
