"""Chapter 12: from following the reward to PPO, one step at a time."""
