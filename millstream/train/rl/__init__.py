"""Tuning by reward: denoising steps as a policy, rollouts by the serving engine's generator, and what learns
from them."""
