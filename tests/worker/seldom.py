"""`python -m tests.worker.seldom COMMAND`: as tests.manage, but a worker looks by itself only once in five seconds."""

from django_manta.worker import lookout
from tests.manage import main

LOOK_SECONDS = 5.0

if __name__ == "__main__":
    lookout.LOOK_SECONDS = LOOK_SECONDS
    main()
