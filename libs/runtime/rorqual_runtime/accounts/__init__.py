"""Who may call, and how much: API keys and their quotas, kept in Redis.

`keys.py` makes, finds and revokes keys; only their digests are stored. `quotas.py` counts what a
key uses, over all gateways together.
"""
