"""Programs that try for minutes or hours to break things: attacks, kills, random input, long runs. `make
soak` runs them."""
