"""The long-lived process that owns one model: claim, decide, act, publish, settle.

One thread owns the model and runs its ticks (``loop``). What would make a tick wait runs on threads of its own:
claiming (``claim_thread``), leases (``lease_thread``), heartbeats (``heartbeat_thread``), settlement
(``settlement_thread``) and the healing sweeps (``housekeeping``). ``process`` puts them together.
"""
