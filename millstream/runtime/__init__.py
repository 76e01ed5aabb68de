"""How a stream lives: timeline, session, generator, journal, engine."""
