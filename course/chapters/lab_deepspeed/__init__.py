"""Lab 05: what a ZeRO stage shards, in our train and by DeepSpeed."""
