"""`cache serve`: a store for the layers of other machines, over HTTP."""

from __future__ import annotations

import argparse
from pathlib import Path

from ferrite_runtime.commands.output import FINE, print_json
from ferrite_runtime.errors import FileUnreadable, OptionError
from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.store.http_server import StoreServer
from ferrite_runtime.store.layers import LayeredStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of the store")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8417, help="0 for any that is free (default: %(default)s)")
    parser.add_argument("--writable", action="store_true", help="take entries that clients send")
    parser.add_argument("--token", help="what clients have to show (default: FERRITE_CACHE_TOKEN)")


def run(arguments: argparse.Namespace) -> int:
    """Serves the store in a folder until it is interrupted."""
    settings = read_settings()
    token = settings.cache_token if arguments.token is None else arguments.token
    if arguments.writable and not token:
        raise OptionError("--writable lets everybody say which kernels run elsewhere: give clients a --token to show")
    if not 0 <= arguments.port < 1 << 16:
        raise OptionError(f"--port is {arguments.port}; it can be 0 to 65535")
    if not arguments.folder.is_dir():
        raise FileUnreadable(arguments.folder, "there is no such folder")
    store = LayeredStore(arguments.folder, (), settings.cache_limit, settings.cache_form)
    try:
        address = (arguments.host, arguments.port)
        server = StoreServer(store, address, is_writable=arguments.writable, token=token)
    except OSError as error:
        raise OptionError(
            f"{arguments.folder} cannot be served at {arguments.host}:{arguments.port}: {error}"
        ) from error
    with server:
        url = f"http://{arguments.host}:{server.port}"
        if arguments.json:
            print_json({"url": url, "folder": str(arguments.folder), "writable": arguments.writable})
        else:
            kind = "readable and writable" if arguments.writable else "readable"
            print(f"{arguments.folder} is {kind} at {url}", flush=True)
        server.serve_forever()
    return FINE
