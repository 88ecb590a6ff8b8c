"""A module of the project's that ends its process when something is missing."""

import sys

sys.exit("set FOO")
