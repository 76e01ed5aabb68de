"""Brook: the small model that comes with Millstream. Its VAE and its text encoder; the DiT is everyone's."""
