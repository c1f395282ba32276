from contextlib import contextmanager

import torch


class answer:
    def __init__(self, module, group, bucket_bytes):
        for tensor in [*module.parameters(), *module.buffers()]:
            group.broadcast(tensor.detach())
        self.group, self.lane, self.syncing = group, group.lane(), True
        self.seen, self.launched, self.buckets = set(), [], [[]]
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if self.buckets[-1] and sum(q.nbytes for q in [*self.buckets[-1], p]) > bucket_bytes:
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, p):
        if self.syncing:
            self.seen.add(p)
            self.launch()

    def launch(self, rest=False):
        for bucket in self.buckets[len(self.launched) :]:
            if not rest and not self.seen.issuperset(bucket):
                break
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([grad.flatten() for grad in grads])
            launched = self.lane.launch(lambda lane, flat=flat: lane.all_reduce(flat))
            self.launched.append((bucket, flat, launched))

    @contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True

    def finish(self, samples):
        self.launch(rest=True)
        count = self.group.all_reduce(torch.tensor([samples], dtype=torch.float64))
        for bucket, flat, launched in self.launched:
            launched.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.view_as(p) / count
        self.seen, self.launched = set(), []
