"""The shared, durable queue of generations, their leases and token logs, and the delivery of tokens, in Valkey.

Valkey is one server (with replicas, if you like), not a cluster: every step is one server-side function
over keys of several generations. ``docs/dispatch.md`` shows every key and the life of a generation.
"""
