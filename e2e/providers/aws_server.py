#!/usr/bin/python3
"""aws_server.py SOCKET runs the aws client in forks of one process, which has loaded its code and the model of EC2.

Each start of the client takes a second of a processor, most of it for loading. A request on SOCKET has the three standard
descriptors, then a line of JSON with arguments and environment. The answer is the exit code. A fork ends with its connection, as a
process ends with its group.
"""
import json
import os
import select
import signal
import socket
import sys
import threading

import awscli.clidriver


def end_with(connection):
    connection.recv(1)
    os._exit(1)


def serve(connection, driver):
    line, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not line.endswith(b"\n"):
        more = connection.recv(1 << 20)
        if not more:  # the client was killed, or only checked whether somebody listens
            os._exit(1)
        line += more
    request = json.loads(line)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    try:
        code = awscli.clidriver.AWSCLIEntryPoint(driver).main(request["arguments"])
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(bytes([code or 0]))
    os._exit(0)


driver = awscli.clidriver.create_clidriver()
driver.session.create_client("ec2", region_name="none", aws_access_key_id="none", aws_secret_access_key="none")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(16)
while listener in select.select([listener, sys.stdin], [], [])[0]:  # ends with its standard input
    connection, _ = listener.accept()
    if os.fork() == 0:
        listener.close()
        serve(connection, driver)
    connection.close()
