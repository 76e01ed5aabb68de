"""Sessions on the event loop's side: found, watched, recorded, kept."""
