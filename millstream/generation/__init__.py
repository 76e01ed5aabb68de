"""From an envelope to clean latents."""
