"""A causal VAE streams: chunk by chunk with tails it makes the very pictures of the whole, and no picture
sees the future."""

from __future__ import annotations

import torch
from torch import Tensor

from course.brook import brook
from course.reader import Reader
from millstream.models.carry import VAEState

CHUNK = 3
CHUNKS = 2
SIDE = 8


@torch.no_grad()
def run(reader: Reader) -> None:
    latents = some_latents()
    whole, _ = brook().vae.decode(latents)
    parts, states = streamed(latents)
    error = float((torch.cat(parts, dim=1) - whole).abs().max())
    reader.say(
        f"{CHUNKS} chunks of {CHUNK} latent frames: {' + '.join(str(part.shape[1]) for part in parts)} "
        "pictures"
    )
    assert error < 1e-4, f"streamed and whole differ by {error}"
    reader.say("decoded chunk by chunk they are those of decoding all at once, within 1e-4")
    tail = sum(tensor.numel() for tensor in states[-1]) * 4
    guess = reader.predict(
        f"the decoder keeps the last 2 latent frames, {SIDE} x {SIDE} with 8 channels, in float32. How many "
        "bytes?"
    )
    reader.reveal(guess, tail, by="counted in the state it hands back")
    changed = latents.clone()
    changed[:, CHUNK:] += 1.0
    after, _ = brook().vae.decode(changed)
    first = parts[0].shape[1]
    assert torch.allclose(after[:, :first], whole[:, :first], atol=1e-5), "the past has changed"
    assert not torch.allclose(after[:, first:], whole[:, first:], atol=1e-2), "the future has not"
    reader.say(
        f"other latents from frame {CHUNK} on change no picture of the first {first}: that is what causal means"
    )


def some_latents() -> Tensor:
    return torch.randn(1, CHUNK * CHUNKS, 8, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def streamed(latents: Tensor) -> tuple[list[Tensor], list[VAEState]]:
    """Pictures of every chunk, each decoded with the tails that the one before handed back."""
    parts = list[Tensor]()
    states = list[VAEState]()
    state = VAEState()
    for chunk in latents.split(CHUNK, dim=1):
        pixels, state = brook().vae.decode(chunk, state)
        parts.append(pixels)
        states.append(state)
    return parts, states
