"""The warnings that every check of a compiler asks for, here and in CMakeLists.txt."""

import os

SHOWN = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion"]
AS_ERRORS = [*SHOWN, "-Werror"]


def are_errors():
    """What ctest passes on of the CMake variable, and .ci/run exports."""
    return os.environ.get("DTRAIN_WARNINGS_AS_ERRORS", "") == "ON"


def flags():
    """A compiler newer than any that .ci/run has may have new warnings: they must not end a user's tests."""
    return AS_ERRORS if are_errors() else SHOWN
