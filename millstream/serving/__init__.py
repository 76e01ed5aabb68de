"""Many sessions on one engine: service, scheduler, admission, session table."""
