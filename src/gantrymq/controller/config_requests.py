"""Handlers of the requests that read and change the configuration of a controller."""

from __future__ import annotations

from gantrymq.background.failures import failure_fields
from gantrymq.background.jobs import Jobs
from gantrymq.config import format_properties
from gantrymq.controller.config import ControllerConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.configuration import Configuration
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.file_changes import FileChanges

_response = RemotingCommand.response


class ConfigRequests:
    """Handles requests about the configuration. `jobs` are the background jobs whose failures are reported."""

    def __init__(self, configuration: Configuration[ControllerConfig], file_changes: FileChanges, jobs: Jobs) -> None:
        self._configuration = configuration
        self._file_changes = file_changes
        self._jobs = jobs

    def by_code(self) -> dict[int, RequestHandler]:
        """Returns the handlers by request code."""
        return {
            RequestCode.UPDATE_CONTROLLER_CONFIG: self._update_config,
            RequestCode.GET_CONTROLLER_CONFIG: self._get_config,
        }

    def _update_config(self, connection: Connection, request: RemotingCommand) -> None:
        source = f"UPDATE_CONTROLLER_CONFIG of {connection.address}"

        async def update() -> RemotingCommand:
            await self._file_changes.make(lambda: self._configuration.changed(request.body, source))
            return _response()

        connection.respond_with(request, update())

    def _get_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        # In the header, as a NameServer does: `gantry doctor` reads these fields.
        body = format_properties(self._configuration.properties()).encode()
        return _response(body=body, fields=failure_fields(self._jobs))
