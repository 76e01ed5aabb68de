"""One live stream: timeline, history, journal, pacing."""
