"""Everywhere that something can be changed, how to change it there, and what the audit has to say of it afterwards.

``surfaces`` lists the places from the product itself, so that a new one is found without anybody thinking of this;
``admin``, ``site``, ``api``, ``commands`` and ``tasks`` have a scenario for each, or ``unrecorded`` a reason why there
is nothing to record; ``watching`` sees what a scenario writes.
"""
