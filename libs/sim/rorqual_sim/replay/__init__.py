"""A whole small fleet in discrete events: prefill, decode, store, failures, scaling, clients."""
