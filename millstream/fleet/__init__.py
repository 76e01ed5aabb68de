"""Many servers behind one address: one line, one promise, sessions that move and outlive a machine."""
