"""A gRPC caller that nobody knows.

python -m tests.tools.stress.stranger BYTES ADDRESS,... /SERVICE/METHOD

Sends one message of so many bytes to each address, one after the other, and prints the codes of the
answers.
"""

from __future__ import annotations

import sys

import grpc


def main() -> None:
    size, addresses, path = sys.argv[1:]
    for address in addresses.split(","):
        sys.stdout.write(_code(address, path, bytes(int(size))) + "\n")


def _code(address: str, path: str, message: bytes) -> str:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            channel.unary_unary(path)(message, timeout=30)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()  # pyright: ignore[reportAttributeAccessIssue]
            return code.name
    return "OK"


if __name__ == "__main__":
    main()
