"""Measures a line between two network namespaces: `serve ADDRESS` at one end, `measure ADDRESS` at
the other.

Round trips of a small UDP packet, and how fast one TCP connection carries a few megabytes.
"""

import json
import socket
import sys
import threading
import time

PORT = 5201
TRIPS = 10
SENT = 16 << 20
LIMIT = 60  # seconds


def echo(address):
    """Sends every packet back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, PORT))
        while True:
            packet, sender = server.recvfrom(64)
            server.sendto(packet, sender)


def swallow(listener):
    """Takes what each connection sends, and answers one byte at its end."""
    while True:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(1 << 20):
                pass
            connection.sendall(b"!")


def serve(address):
    """Serves both until it is killed."""
    with socket.create_server((address, PORT)) as listener:
        threading.Thread(target=echo, args=(address,), daemon=True).start()
        print("ready", flush=True)
        swallow(listener)


def round_trip(address):
    """Seconds there and back, the median."""
    times = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(LIMIT)
        for _ in range(TRIPS):
            began = time.perf_counter()
            client.sendto(b"?", (address, PORT))
            client.recv(64)
            times.append(time.perf_counter() - began)
    return sorted(times)[TRIPS // 2]


def bandwidth(address):
    """Bytes a second over one connection."""
    with socket.create_connection((address, PORT), timeout=LIMIT) as client:
        began = time.perf_counter()
        client.sendall(bytes(SENT))
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
        return SENT / (time.perf_counter() - began)


def main():
    what, address = sys.argv[1:]
    if what == "serve":
        serve(address)
    else:
        print(json.dumps({"round_trip": round_trip(address), "bandwidth": bandwidth(address)}))


if __name__ == "__main__":
    main()
