"""Set-up: from a fresh clone to a working installation, with any Python 3.11 and its standard library."""
