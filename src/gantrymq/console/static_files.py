"""Serves the files of /static from memory, with ETags for the browser's cache."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

#: Cache time in browsers, s. The URL of a file contains the version, so browsers load a new version at once.
_MAX_AGE_S = 86400


class StaticFiles:
    """Serves the files of `directory`, which are read once."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, tuple[bytes, dict[str, str]]] = {}
        for path in directory.iterdir():
            data = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "text/plain"
            headers = {
                "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
                "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"',
                "Cache-Control": f"public, max-age={_MAX_AGE_S}",
            }
            self._files[path.name] = data, headers

    async def serve(self, request: Request) -> Response:
        """Returns the file with the `name` in the path. Raises HTTPException if there is no such file."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        data, headers = found
        tags = request.headers.get("if-none-match", "")
        if headers["ETag"] in [tag.strip().removeprefix("W/") for tag in tags.split(",")]:
            return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Cache-Control")})
        return Response(data, headers=headers)
