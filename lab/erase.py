"""Runs benchmarks/erase.py on the drives of lab/erase-hardware. Runs in the guest."""

import os
import sys

slots = [f"0000:00:1{n}.0" for n in range(4)]
script = os.path.join(os.environ["LAB_REPO"], "benchmarks/erase.py")
os.execv(sys.executable, [sys.executable, script, "--destroy", "--slow", *slots])
