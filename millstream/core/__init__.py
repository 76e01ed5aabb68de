"""Plain data shared by everything: configuration, controls, envelopes, errors, spans. No torch."""
