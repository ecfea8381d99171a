"""``python -m remora.cluster DIRECTORY``: an owner, as workers start it."""

import sys

from remora.cluster.owner import main

if __name__ == "__main__":
    sys.exit(main())
