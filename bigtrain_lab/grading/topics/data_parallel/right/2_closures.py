from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import torch


def answer(module, group, bucket_bytes):
    for tensor in [*module.parameters(), *module.buffers()]:
        group.broadcast(tensor)
    lane, quiet = group.lane(), False
    buckets, sizes, missing, sums = [], [], [], []

    def launch_next():
        bucket = buckets[len(sums)]
        grads = [p.detach() * 0 if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        sums.append(lane.launch(partial(mean, flat)))

    def mean(flat, group_of_the_lane):
        return group_of_the_lane.all_reduce(flat, "mean")

    def hook(at, p):
        if not quiet:
            missing[at].discard(p)
            while len(sums) < len(buckets) and not missing[len(sums)]:
                launch_next()

    @contextmanager
    def no_sync():
        nonlocal quiet
        quiet = True
        yield
        quiet = False

    def finish(samples):
        while len(sums) < len(buckets):
            launch_next()
        count = group.all_reduce(torch.tensor(samples).double(), op="mean")
        for bucket, launched in zip(buckets, sums):
            flat = launched.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.reshape(p.shape).div(count)
        sums.clear()
        missing[:] = map(set, buckets)

    for p in reversed([p for p in module.parameters() if p.requires_grad]):
        if not sizes or sizes[-1] + p.nbytes > bucket_bytes:
            buckets.append([])
            sizes.append(0)
        buckets[-1].append(p)
        sizes[-1] += p.nbytes
        p.register_post_accumulate_grad_hook(partial(hook, len(buckets) - 1))
    missing[:] = map(set, buckets)
    return SimpleNamespace(finish=finish, no_sync=no_sync)
