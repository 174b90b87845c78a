"""`python -m benchmarks`: list the studies, or run one."""

import sys

from benchmarks.runner import main

if __name__ == "__main__":
    sys.exit(main())
