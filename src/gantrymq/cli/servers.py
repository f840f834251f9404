"""Runs `gantry namesrv`, `broker`, `controller` and `proxy`: reads the configuration, and serves until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from gantrymq.background.collector import Collector
from gantrymq.cli.server_options import ServerOptions
from gantrymq.config import format_properties, from_properties, load_properties, to_properties, unknown_keys
from gantrymq.errors import ConfigError
from gantrymq.logs import log_to_stderr
from gantrymq.store.open_files import raise_open_files_limit

log = logging.getLogger(__name__)

#: After this time, the process exits even if the server hasn't stopped. The next start then recovers the files.
STOP_TIMEOUT_S = 30.0
#: After this time, a waiting thread takes the GIL from the event loop, in seconds. A system call of the loop restarts
#: the time. With Python's default of 5 ms, a flush for waiting producers could take 500 ms while the loop was busy.
SWITCH_INTERVAL_S = 0.001
#: The keys of broker.conf for a proxy beside the broker.
_PROXY_KEYS = ("proxyMode", "proxyConfigPath")
_CONFIG_PATH_KEYS = {"namesrv": "configStorePath", "broker": "brokerConfigPath", "controller": "configStorePath"}


class Server(Protocol):
    """A NameServer, a Broker, a Controller or a Proxy."""

    @property
    def address(self) -> str: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def run_server(command: str, options: ServerOptions) -> int:
    """Runs `gantry namesrv`, `broker`, `controller` or `proxy` until a signal. Returns the exit code."""
    properties = _properties(command, options)
    source = str(options.config or "the command line")
    # Logs go to standard error, so that they don't mix with the configuration printed by --printConfig.
    log_to_stderr()
    raise_open_files_limit()
    name, make, settings, unknown = _PREPARE[command](properties, source)
    if options.print_config:
        print(format_properties(settings), end="")
        return 0
    # Each broker has a number in its name and directory, even if it is the only one.
    if options.processes is not None and (command == "broker" or options.processes > 1):

        def known() -> dict[str, str]:
            # Omits unknown keys, because each process would log the warnings about them again.
            return {key: value for key, value in _properties(command, options).items() if key not in unknown}

        if command == "broker":
            from gantrymq.cli.broker_processes import BrokerProcesses

            make = partial(BrokerProcesses, known, options.processes)
        else:
            from gantrymq.cli.proxy_processes import ProxyProcesses

            make = partial(ProxyProcesses, known(), options.processes)
    return _serve(name, make, stop_on_eof=options.stop_on_eof)


def _properties(command: str, options: ServerOptions) -> dict[str, str]:
    """Reads the configuration. The options override it."""
    properties = _load(command, options.config) if options.config else {}
    if options.config and command in _CONFIG_PATH_KEYS:
        # As in Java, admin requests that change the configuration update the file with which the server was started.
        properties.setdefault(_CONFIG_PATH_KEYS[command], str(options.config.absolute()))
    if options.namesrv_addr and command in ("broker", "proxy"):
        properties["namesrvAddr"] = options.namesrv_addr
    return properties


def _load(command: str, path: Path) -> dict[str, str]:
    if command == "proxy" and path.suffix == ".json":
        from gantrymq.extras import need

        need("proxy", "gantry proxy")
        from gantrymq.proxy.config import load_json

        return load_json(path)
    return load_properties(path)


def _serve(name: str, make: Callable[[], Server], *, stop_on_eof: bool) -> int:
    from gantrymq.background.event_loop import new_event_loop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run_until_stopped(name, make, stop_on_eof=stop_on_eof))


async def _run_until_stopped(name: str, make: Callable[[], Server], *, stop_on_eof: bool) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    loop.add_signal_handler(signal.SIGTERM, stop, 0)
    loop.add_signal_handler(signal.SIGINT, stop, 130)
    if stop_on_eof:

        def read() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                stop(0)

        loop.add_reader(0, read)
    server = make()
    await server.start()
    Collector().start()
    try:
        print(f"{name} ready at {server.address}", flush=True)
        return await stopped
    finally:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await server.stop()


class Prepared(NamedTuple):
    """A server to create, and its configuration.

    Attributes:
        name: Name of the server.
        make: Creates the server.
        settings: All keys of its configuration.
        unknown: Keys of the given configuration that the server doesn't use.
    """

    name: str
    make: Callable[[], Server]
    settings: dict[str, str]
    unknown: list[str]


def _name_server(properties: dict[str, str], source: str) -> Prepared:
    from gantrymq.namesrv.config import NamesrvConfig
    from gantrymq.namesrv.server import NameServer
    from gantrymq.remoting.tls import SECRET_KEYS

    unknown = _warn_of_unknown([NamesrvConfig], properties, source)
    config = from_properties(NamesrvConfig, properties, source=source)
    settings = _without(to_properties(config), SECRET_KEYS)
    return Prepared("NameServer", partial(NameServer, config, properties), settings, unknown)


def _broker(properties: dict[str, str], source: str) -> Prepared:
    from gantrymq.auth import config as auth_config
    from gantrymq.auth.config import AuthConfig
    from gantrymq.broker.broker import Broker
    from gantrymq.broker.config import SECRET_KEYS, BrokerConfig
    from gantrymq.remoting import tls
    from gantrymq.replication.config import ReplicationConfig
    from gantrymq.store.config import StoreConfig, check_supported

    check_supported(properties)
    from_broker = {key: value for key, value in properties.items() if key not in _PROXY_KEYS}
    unknown = _warn_of_unknown([BrokerConfig, StoreConfig, ReplicationConfig, AuthConfig], from_broker, source)
    store = from_properties(StoreConfig, {"storePathRootDir": str(Path.home() / "store")} | properties, source=source)
    auth = from_properties(AuthConfig, properties, source=source)
    replication = from_properties(ReplicationConfig, properties, source=source)
    broker = from_properties(BrokerConfig, properties, source=source)
    config = replace(broker, store=store, replication=replication, auth=auth)
    # Java has one flat file for all settings.
    settings = to_properties(config) | to_properties(store) | to_properties(replication) | to_properties(auth)
    secret = {*SECRET_KEYS, *auth_config.SECRET_KEYS, *tls.SECRET_KEYS}
    settings = _without(settings, {"store", "replication", "auth", *secret})
    make: Callable[[], Server] = partial(Broker, config)
    if "proxyMode" in properties:
        from gantrymq.cli.proxy_beside_broker import BrokerWithProxy, proxy_properties, wants_proxy

        if wants_proxy(properties):
            make = partial(BrokerWithProxy, config, proxy_properties(properties))
    return Prepared(f"broker {config.broker_name}", make, settings, unknown)


def _controller(properties: dict[str, str], source: str) -> Prepared:
    from gantrymq.controller.config import SECRET_KEYS, ControllerConfig
    from gantrymq.controller.server import Controller

    unknown = _warn_of_unknown([ControllerConfig], properties, source)
    config = from_properties(ControllerConfig, properties, source=source)
    settings = _without(to_properties(config), SECRET_KEYS)
    return Prepared("controller", partial(Controller, config, properties), settings, unknown)


def _proxy(properties: dict[str, str], source: str) -> Prepared:
    from gantrymq.extras import need

    need("proxy", "gantry proxy")
    from gantrymq.proxy.config import SECRET_KEYS, ProxyConfig
    from gantrymq.proxy.proxy import Proxy

    unknown = _warn_of_unknown([ProxyConfig], properties, source)
    config = from_properties(ProxyConfig, properties, source=source)
    settings = _without(to_properties(config), SECRET_KEYS)

    def make() -> Server:
        if not config.namesrv_addr.strip(" ;"):
            raise ConfigError("no NameServer given: pass it with '-n', or as namesrvAddr in the configuration")
        return Proxy(config)

    return Prepared("proxy", make, settings, unknown)


#: {command: function that reads the configuration of the server}.
_PREPARE: dict[str, Callable[[dict[str, str], str], Prepared]] = {
    "namesrv": _name_server,
    "broker": _broker,
    "controller": _controller,
    "proxy": _proxy,
}


def _without(settings: dict[str, str], hidden: Set[str]) -> dict[str, str]:
    """Returns the settings, without hidden settings such as passwords."""
    return {key: value for key, value in settings.items() if key not in hidden}


def _warn_of_unknown(classes: list[type], properties: dict[str, str], source: str) -> list[str]:
    if unknown := unknown_keys(classes, properties):
        log.warning("%s: not used here: %s", source, ", ".join(unknown))
    return unknown
