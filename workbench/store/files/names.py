"""Names of files in a store; none is made of a user's text."""

import re

NAME = re.compile(r"\w[\w.-]{0,199}")  # of a file, without its ending
