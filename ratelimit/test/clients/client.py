"""Calls the rate limit service as grpcio does: client.py ADDRESS METHOD TIMEOUT, with a request in
hexadecimal on each line of standard input.

All requests are under way together on one channel. Prints a line for each, in order: its status, a space, and the answer
in hexadecimal or the status' text.
"""

import sys

import grpc

address, method, timeout = sys.argv[1:]
requests = [line.strip() for line in sys.stdin]
with grpc.insecure_channel(address) as channel:
    call = channel.unary_unary(method)
    calls = [call.future(bytes.fromhex(r), timeout=float(timeout), metadata=[("x-bin", b"\x00\xff")]) for r in requests]
    for c in calls:
        try:
            print(0, c.result().hex())
        except grpc.RpcError as e:
            print(e.code().value[0], e.details())
