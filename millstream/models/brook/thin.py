"""Brook's thin decoder: the same network as its decoder with a fifth of the work, for CPUs. Distilled by
`millstream train decoder`."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from millstream.core.config import BrookVAEConfig
from millstream.core.errors import WeightsError
from millstream.core.files import Staging
from millstream.models.brook.vae import BrookDecoder
from millstream.models.empty import empty_modules

THIN = BrookVAEConfig(widths=(96, 32, 16), blocks=(3, 1, 0))


def save_thin_decoder(path: Path, decoder: BrookDecoder) -> None:
    """Write the thin decoder to a file, which appears by rename."""
    tensors = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in decoder.state_dict().items()
    }
    with Staging(path.parent) as staging:
        save_file(tensors, staging.path(path.name))


def load_thin_decoder(path: Path, device: torch.device, dtype: torch.dtype) -> BrookDecoder:
    with empty_modules():
        decoder = BrookDecoder(THIN)
    try:
        tensors = {name: value.to(device, dtype) for name, value in load_file(path).items()}
        decoder.load_state_dict(tensors, assign=True)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise WeightsError(
            f"{path} cannot be read ({type(error).__name__}); install millstream again"
        ) from None
    nn.utils.convert_conv2d_weight_memory_format(decoder, torch.channels_last)
    return decoder.requires_grad_(requires_grad=False)
