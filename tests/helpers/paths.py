"""Where things lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Real data sets, next to the checkout; they are not part of the project.
SHARED_DATA = ROOT.parent / "shared" / "data"
