"""What torch reads from the environment as it is loaded, set to what suits a stream. Whoever has set it has decided.

For programs of this project; one that imports `millstream` decides for itself.
"""

from __future__ import annotations

from collections.abc import MutableMapping


def settle_torch(environment: MutableMapping[str, str]) -> None:
    """Before torch is loaded.

    CUDA's memory grows in place, so that what one kind of call leaves free another can use. cuDNN picks convolutions by its
    second heuristic: a VAE's are up to half as quick again, and a shape still has one algorithm, hence the same bits. A lost
    connection is said once, in our words.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in environment:  # its name before it was every accelerator's
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    environment.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
