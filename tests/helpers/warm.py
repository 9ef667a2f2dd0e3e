"""A Python that has imported torch and Lightning already, which spares each process that tests start 5 s.

A server imports the package once and forks for every command, so that commands are still processes of their own, with
their own arguments, environment, folder and output. What only a fresh interpreter shows is tested with a fresh one.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

#: Stands for a command: hands its words to the server, waits, and ends as the command did.
CLIENT = """#!{python} -SEs
import json, os, socket, sys
module = {modules}.get(os.path.basename(sys.argv[0]))
words = [*(["-m", module] if module else []), *sys.argv[1:]]
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
request = dict(words=words, folder=os.getcwd(), environment=dict(os.environ), python={client!r})
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
sys.exit(int(server.recv(16) or 255))
"""
MODULES = {"lightning-tpauc": "lightning_tpauc", "torchrun": "torch.distributed.run"}


@functools.cache
def warm_folder() -> Path:
    """Folder of ``lightning-tpauc``, ``torchrun`` and ``python``; that takes ``-m MODULE``, ``-c CODE`` or a script."""
    folder = Path(tempfile.mkdtemp())
    address, client = str(folder / "socket"), folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, modules=MODULES, address=address, client=str(client)))
    client.chmod(0o755)
    for name in MODULES:
        (folder / name).symlink_to(client)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()  # commands that come before the imports are done wait here
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.warm", str(listener.fileno())],
        env=environment,
        pass_fds=[listener.fileno()],
        cwd=Path(__file__).parents[2],
    )
    atexit.register(server.kill)
    return folder


def with_warm_path(environment):
    """The environment, in which these commands are found first; torchrun takes this Python, too."""
    folder = warm_folder()
    path = f"{folder}{os.pathsep}{environment['PATH']}"
    return {**environment, "PATH": path, "PYTHON_EXEC": str(folder / "python")}


# ---------------------------------------------------------------- the server


def next_command(listener):
    """Wait for commands; returns once in each of the processes that are forked for them, with its words."""
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            break
        connection.close()
    content, outputs, *_ = socket.recv_fds(connection, 1 << 20, 3)
    request = json.loads(content)
    command = os.fork()
    if command == 0:
        connection.close()
        os.setsid()
        for place, output in enumerate(outputs):
            os.dup2(output, place)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.executable = request["python"]
        return request["words"]
    ended = os.pidfd_open(command)
    if connection in select.select([connection, ended], [], [])[0]:  # who asked is gone
        os.killpg(command, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    connection.send(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


def run(words):
    """What the interpreter does with its words."""
    words = words[words[0] == "-u" :]
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], ""
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(words[1], {"__name__": "__main__"})  # noqa: S102
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    for name in ("torch.distributed.run", "lightning_tpauc.cli.command"):
        importlib.import_module(name)
    gc.freeze()
    run(next_command(socket.socket(fileno=int(sys.argv[1]))))
