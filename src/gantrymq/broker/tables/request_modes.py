"""The request mode, POP or PULL, of each topic and group: SET_MESSAGE_REQUEST_MODE (`MessageRequestModeManager`)."""

from __future__ import annotations

from pathlib import Path

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables.persistence import TablePersistence, answer_after, in_pieces
from gantrymq.broker.tables.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.tables.topics import BrokerTopics
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.pop import MODE_POP, MODE_PULL, RequestMode, RequestModeTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection, Reply, RequestHandler


class MessageRequestModes(Feature):
    """Stores the request modes of one broker in messageRequestMode.json."""

    def __init__(
        self,
        config: BrokerConfig,
        path: Path,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        *,
        persistence: TablePersistence,
    ) -> None:
        self._config = config
        self._file = persistence.file(path, lambda: in_pieces(self.table))
        self._topics = topics
        self._groups = groups
        self.table = RequestModeTable()

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all,
        }

    def load(self) -> None:
        self.table = self._file.load(RequestModeTable) or self.table

    def copy(self, master: RequestModeTable) -> None:
        """Replaces the modes by those of the master."""
        if self.table != master:
            self.table = master
            self._file.changed()

    def find(self, topic: str, group: str) -> RequestMode:
        """Returns the mode of a topic and group, or the default one. The default for retry topics is PULL."""
        mode = self.table.message_request_mode_map.get(topic, {}).get(group)
        if mode is not None:
            return mode
        name = MODE_PULL if topic.startswith(RETRY_TOPIC_PREFIX) else self._config.default_message_request_mode
        share = self._config.default_pop_share_queue_num if name == MODE_POP else 0
        return RequestMode(topic, group, name, share)

    def set(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles SET_MESSAGE_REQUEST_MODE. Responds after the mode is on disk."""
        mode = decode_request_json(request.body, RequestMode)
        if mode.topic.startswith(RETRY_TOPIC_PREFIX):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if mode.mode not in (MODE_PULL, MODE_POP):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"mode[{mode.mode}] is neither PULL nor POP")
        if self._topics.get(mode.topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        if self._groups.get(mode.consumer_group) is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self.table.message_request_mode_map.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._file.changed()
        connection.respond_with(request, answer_after(self._file.written()))
        return None

    def all(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles GET_ALL_MESSAGE_REQUEST_MODE: returns all modes."""
        return RemotingCommand.response(body=encode_json(self.table))
