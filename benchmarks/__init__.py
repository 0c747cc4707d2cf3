"""Scripts that measure: run each as ``python -m benchmarks.name`` in the checkout."""

import sys
from pathlib import Path

# The project package's source root, which manage.py and pytest put on the path for everything else.
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "platform"))
