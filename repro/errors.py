"""The base of every error that is the user's to fix."""

from __future__ import annotations


class UserError(ValueError):
    """A wrong option, file or number.

    The message is complete on its own (it repeats the input, names the option and says what would do), so the command
    line prints it as one line without a traceback.
    """
