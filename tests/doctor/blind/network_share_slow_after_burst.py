# SPDX-License-Identifier: Apache-2.0
"""github.com/horovod/horovod#824

A benchmark runs at full speed at first and then drops for good, though neither processor nor GPU looks busy.

Cause: the training files lie on a network share that grants a burst and after that a low rate; workers wait for it
Line: network_share_slow_after_burst.py:read_exactly (in the workers)
Remedy: the same files on a local disk
"""
import multiprocessing
import os
import socket
import socketserver
import struct
import tempfile
import threading
import time

import numpy
import torch

import blind
import training


class Share(socketserver.ThreadingTCPServer):
    """Sends files over TCP; after `burst` bytes in all at no more than `rate` bytes a second."""

    daemon_threads, lock, free_at = True, threading.Lock(), 0.0

    def pay(self, size):
        with self.lock:
            self.burst -= size
            if self.burst > 0:
                return
            self.free_at = max(self.free_at, time.monotonic()) + size / self.rate
            delay = self.free_at - time.monotonic()
        time.sleep(max(0.0, delay))


class Reply(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            request = self.request.recv(8)
            if len(request) < 8:
                return
            with open(os.path.join(self.server.folder, str(struct.unpack("q", request)[0])), "rb") as file:
                data = file.read()
            self.server.pay(len(data))
            self.request.sendall(data)


def serve(folder, burst, rate, port):
    with Share(("127.0.0.1", 0), Reply) as share:
        share.folder, share.burst, share.rate = folder, burst, rate
        port.send(share.server_address[1])
        share.serve_forever()


def read_exactly(connection, size):
    data = bytearray()
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


class Files(torch.utils.data.Dataset):
    def __init__(self, samples, folder, files, size, port):
        self.samples, self.folder, self.files, self.size, self.port = samples, folder, files, size, port
        self.connection = None

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if self.port is None:
            with open(os.path.join(self.folder, str(index % self.files)), "rb") as file:
                return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port))
        self.connection.sendall(struct.pack("q", index % self.files))
        return torch.frombuffer(read_exactly(self.connection, self.size), dtype=torch.uint8)


def main():
    loop = blind.Loop("network_share_slow_after_burst", "network", steps=400)
    device = loop.device()
    batch, files, width = loop.size(32, 2), loop.size(512, 4), loop.size(4096, 32)
    size = 48 * width  # bytes a file
    model, optimizer = training.make_model(loop.size(48 if loop.variant == "healthy" else 16, 2), width, device)
    dtype, views = next(model.parameters()).dtype, loop.size(4, 2)
    server, port = None, None

    def step(_):
        images = next(batches)
        x = images.to(device, non_blocking=True).to(dtype).view(-1, width) / 255
        x = x.repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))

    with tempfile.TemporaryDirectory() as folder:
        for i in range(files):
            numpy.random.default_rng(i).integers(256, size=size, dtype=numpy.uint8).tofile(os.path.join(folder, str(i)))
        if loop.planted:
            ours, theirs = multiprocessing.Pipe()
            server = multiprocessing.Process(target=serve, args=(folder, 5e8, 1.5e8, theirs), daemon=True)
            server.start()
            port = ours.recv()
        data = Files((loop.steps + loop.warm_up + 1) * batch, folder, files, size, port)
        loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(8, 1),
                                             pin_memory=device.type == "cuda")
        batches = iter(loader)
        loop.run(step, blind.wait_for(device))
        del batches
        if server:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
