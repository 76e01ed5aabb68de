"""Networks and what they run on: DiT, VAE, text encoder, sampler, key/value ring, weights. They never see a
rank."""
