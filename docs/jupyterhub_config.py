"""A JupyterHub for bigtrain_lab on one machine: what docs/administrators.md explains.

`python -m benchmarks hub` runs a hub with this file. Yours needs an authenticator besides:
`c.JupyterHub.authenticator_class`, and a spawner that starts each user under an account of its own.
"""

import resource

from jupyterhub.spawner import SimpleLocalProcessSpawner

GB = 10**9
PORTS = 10_000  # a server's port is this plus its user's number: below those that Linux gives away


class Limited(SimpleLocalProcessSpawner):
    """A spawner of local processes with the limits that the kernel of Linux keeps.

    Each user's server has a port of its own. The hub would look for a free one, which another
    process may take before a slow server opens it.
    """

    async def start(self):
        self.port = PORTS + self.user.id
        return await super().start()

    def make_preexec_fn(self, name):
        before = super().make_preexec_fn(name)

        def limited():
            before()
            resource.setrlimit(resource.RLIMIT_DATA, (3 * GB, 3 * GB))  # of each process
            resource.setrlimit(resource.RLIMIT_FSIZE, (GB, GB))  # of each file
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        return limited


c = get_config()  # noqa: F821  JupyterHub defines it
c.JupyterHub.concurrent_spawn_limit = 10
c.JupyterHub.active_server_limit = 30
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = 600
c.Spawner.http_timeout = 600
c.Spawner.environment = {"OMP_NUM_THREADS": "1"}
c.Spawner.args = [
    "--MappingKernelManager.cull_idle_timeout=1800",  # s: ends a kernel that does nothing
    "--MappingKernelManager.cull_connected=True",  # also where its page is open
    "--MappingKernelManager.cull_interval=120",
    # Another process may take a kernel's ports before a slow kernel opens them. It dies then, and
    # starts again with other ports, if that was in its first 120 s.
    "--KernelRestarter.stable_start_time=120",
    "--KernelManager.cache_ports=False",
    "--ServerApp.shutdown_no_activity_timeout=3600",  # then the server
]
