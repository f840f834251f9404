"""The files of /static, in memory. Each has an ETag, so that a browser loads it once."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

#: The address of a file has the version in its query, so that a new version is loaded at once.
_MAX_AGE_S = 86400


class StaticFiles:
    """Those of `directory`, read once."""

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
        """The file with the `name` in the path. Raises HTTPException."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        data, headers = found
        tags = request.headers.get("if-none-match", "")
        if headers["ETag"] in [tag.strip().removeprefix("W/") for tag in tags.split(",")]:
            return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Cache-Control")})
        return Response(data, headers=headers)
