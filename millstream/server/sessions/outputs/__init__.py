"""A session's pictures in other people's tools: sent to their addresses, or fetched from ours as HLS."""
