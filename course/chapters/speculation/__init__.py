"""Chapter 11: letters that are guessed and judged, letters that are forbidden, and chunks that are made
ahead."""
