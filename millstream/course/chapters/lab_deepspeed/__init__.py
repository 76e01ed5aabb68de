"""Lab 05: what a ZeRO stage shards, in our trainer and by DeepSpeed."""
