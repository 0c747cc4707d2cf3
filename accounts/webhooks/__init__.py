"""Telling programs: signed messages to addresses that a tenant names, by the convention of Standard Webhooks."""
