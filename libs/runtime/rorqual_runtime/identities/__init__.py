"""Who each process is to NATS, and what it may do there."""
