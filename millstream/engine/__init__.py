"""From weights to a running engine: the one chunk pipeline, streams, snapshots, replay."""
