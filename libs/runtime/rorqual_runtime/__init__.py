"""Service shell of Rorqual: bus, tensor plane, telemetry, lifecycle."""
