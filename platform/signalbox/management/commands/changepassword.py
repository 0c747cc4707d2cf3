from __future__ import annotations

from signalbox.management.refused import RefusedCommand


class Command(RefusedCommand):
    help = "Refused: give a user a one-time password with `manage.py user password NAME`."
    instead = "user password NAME"
