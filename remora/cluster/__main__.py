"""``python -m remora.cluster DIRECTORY``: an owner, as workers and ``remora serve`` start it."""

import sys

from remora.cluster.serve import main

if __name__ == "__main__":
    sys.exit(main())
