"""How an envelope travels: parcels and transports."""
