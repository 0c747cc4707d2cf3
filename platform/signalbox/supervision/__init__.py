"""`manage.py up`: one process that starts, watches and stops all the others."""
