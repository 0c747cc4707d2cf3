from __future__ import annotations

from signalbox.management.refused import RefusedCommand


class Command(RefusedCommand):
    help = "Refused: make an operator with `manage.py user create NAME --operator`."
    instead = "user create NAME --operator"
