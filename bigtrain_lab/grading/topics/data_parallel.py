"""Data parallel by hooks: buckets of gradients, each summed on a lane while the backward goes on.

    gradient   sum_r g_r / sum_r n_r, of losses that are sums over the n_r samples of rank r
    buckets    at most bucket_bytes each, or one parameter; launched in one order on all ranks

The truth is torch's own gradient of all samples in one process.
Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2.
"""

from contextlib import nullcontext
from functools import cache

import torch

from ..likeness import Scene, Topic, Wrong
from ..ranks import Ranks

RIGHT = """
import torch
from contextlib import contextmanager

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
            self.launch(self.seen.issuperset)

    def launch(self, full):
        for bucket in self.buckets[len(self.launched):]:
            if not full(bucket):
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
        self.launch(lambda bucket: True)
        count = self.group.all_reduce(torch.tensor([samples], dtype=torch.float64))
        for bucket, flat, launched in self.launched:
            launched.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.view_as(p) / count
        self.seen, self.launched = set(), []
"""
CLOSURES = """
import torch
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

def answer(module, group, bucket_bytes):
    for tensor in module.state_dict().values():
        group.broadcast(tensor)
    buckets, sizes, left, sums, quiet = [], [], [], [], []

    def launch(rest=False):
        while len(sums) < len(buckets) and (rest or not left[len(sums)]):
            grads = (p.detach() * 0 if p.grad is None else p.grad for p in buckets[len(sums)])
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            mean = lambda flat, lane: lane.all_reduce(flat, "mean")
            sums.append(group.lane().launch(partial(mean, flat)))

    def hook(at, p):
        if not quiet:
            left[at].discard(p)
            launch()

    def finish(samples):
        launch(rest=True)
        count = group.all_reduce(torch.tensor(float(samples)).double(), op="mean")
        for bucket, one in zip(buckets, sums):
            for p, part in zip(bucket, one.wait().split([p.numel() for p in bucket])):
                p.grad = part.reshape(p.shape).div(count)
        sums.clear(), left.clear(), left.extend(map(set, buckets))

    @contextmanager
    def no_sync():
        quiet.append(True)
        yield quiet.pop

    for p in reversed([p for p in module.parameters() if p.requires_grad]):
        if not sizes or sizes[-1] + p.nbytes > bucket_bytes:
            buckets.append([]), sizes.append(0)
        buckets[-1].append(p)
        sizes[-1] += p.nbytes
        p.register_post_accumulate_grad_hook(partial(hook, len(buckets) - 1))
    left.extend(map(set, buckets))
    return SimpleNamespace(finish=finish, no_sync=no_sync)
""".replace("yield quiet.pop", "yield\n        quiet.pop()")
FULL, SPLIT = "self.launch(self.seen.issuperset)", "> bucket_bytes"
REDUCED = "launched = self.lane.launch(lambda lane, flat=flat: lane.all_reduce(flat))"
COUNT = "self.group.all_reduce(torch.tensor([samples], dtype=torch.float64))"
START, REST = "[*module.parameters(), *module.buffers()]", "self.launch(lambda bucket: True)"
WAITS = "The backward waits for an all-reduce: launch it on the lane, and wait in finish."
LATE = "Right gradients, but nothing travels beside the backward: "
SAMPLES = "Your gradient is not that of the mean over all samples: "


def but(*changes: str) -> str:
    """The first right answer with old, new, old, new, ... replaced."""
    text = RIGHT
    for old, new in zip(changes[::2], changes[1::2]):
        text = text.replace(old, new)
    return text


class DataParallel(Topic):
    name = "data-parallel"
    hints = (
        "When is a layer's gradient final? Which layer's is first, and what may leave then?",
        "A hook on each parameter notes what is there; a full bucket is launched on the lane.",
        "Launch bucket i only after i - 1; finish launches the rest, waits, and divides.",
    )
    right = {
        "a class": RIGHT,
        "closures": CLOSURES,
        "means": but("all_reduce(flat)", "all_reduce(flat, 'mean')", "64))", "64), 'mean')"),
        "in place": but("launched.wait()\n", "launched.wait().div_(count)\n", " / count", ""),
        "counted on a lane": but(
            COUNT, COUNT.replace("self.group", "self.lane.launch(lambda lane: lane") + ").wait()"
        ),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "no_initial_broadcast",
                "Ranks start from other weights, and equal gradients never bring "
                "them together: broadcast rank 0's.",
                but(START, "()"),
            ),
            (
                "no buffers",
                "Buffers differ between ranks: broadcast them as well.",
                but(START, "module.parameters()"),
            ),
            ("sum_not_mean", SAMPLES + "divide the sum by their number.", but(" / count", "")),
            (
                "mean_of_unequal",
                "Ranks have unequal numbers of samples, and you weigh them alike: add "
                "up the samples.",
                but(" / count", " / (samples * self.group.size)"),
            ),
            (
                "weighs twice",
                SAMPLES + "take gradients and samples both as sums.",
                but("all_reduce(flat)", "all_reduce(flat, 'mean')"),
            ),
            ("no_overlap", LATE + "launch in the hook.", but(FULL, "pass")),
            (
                "one flat bucket",
                "One bucket of all leaves at the very end: begin a new one when full.",
                but(SPLIT, "> 1e9"),
            ),
            (
                "elements",
                "Buckets hold bucket_bytes numbers, and a number has several bytes: add up nbytes.",
                but("q.nbytes", "q.numel()"),
            ),
            (
                "one each",
                "Each parameter travels alone and pays latency: fill buckets to bucket_bytes.",
                but(SPLIT, "> 0"),
            ),
            (
                "forward order",
                "The first bucket fills last: take the parameters in reverse.",
                but("reversed(", "list("),
            ),
            (
                "blocks",
                WAITS,
                but(
                    REDUCED,
                    "self.group.all_reduce(flat)\n"
                    "            launched = self.lane.launch(lambda lane: None)",
                ),
            ),
            ("waits at once", WAITS, but(REDUCED, f"{REDUCED}; launched.wait()")),
            (
                "never waits",
                "You use a sum before it is there: wait for what was launched.",
                but("            launched.wait()\n", ""),
            ),
            (
                "late binding",
                "Each launched function reduces the last bucket: bind its own tensor.",
                but("lane, flat=flat:", "lane:"),
            ),
            (
                "syncs_each_micro",
                "There are all-reduces under no_sync: only the last backward sends.",
                but(
                    "        yield\n",
                    "        yield\n        for p in sum(self.buckets, []):\n"
                    "            self.lane.launch(lambda lane: lane.all_reduce(p.grad.clone()))\n",
                ),
            ),
            (
                "ignores no_sync",
                "Only the first micro-batch is sent: launch nothing under no_sync.",
                but("if self.syncing:", "if True:"),
            ),
            (
                "stays silent",
                LATE + "no_sync ends with its block.",
                but("yield\n        self.syncing = True", "yield"),
            ),
            (
                "unused_hangs",
                "A rank did not use a parameter, and its bucket waits for ever: launch "
                "the rest in finish.",
                but(REST, "pass"),
            ),
            (
                "none_fails",
                "A rank did not use a parameter, so its grad is None: send zeros for it.",
                but("torch.zeros_like(p) if p.grad is None else p.grad for", "p.grad for"),
            ),
            (
                "stays None",
                "A parameter that this rank did not use keeps None: it gets the others' sum too.",
                but(
                    "                p.grad = part",
                    "                if p.grad is not None: p.grad = part",
                ),
            ),
            (
                "bucket_order_by_rank",
                "Ranks launch buckets as they fill, which is another order on "
                "another rank: keep one.",
                but(
                    "in self.buckets[len(self.launched):]:",
                    "in self.buckets:\n"
                    "            if any(bucket is one for one, *_ in self.launched): continue",
                    "                break",
                    "                continue",
                ),
            ),
            (
                "no reset",
                "The second batch begins with what the first left: reset what you noted.",
                but(
                    "        self.seen, self.launched = set(), []\n", "        self.launched = []\n"
                ),
            ),
            (
                "frozen",
                "A frozen parameter gets no gradient: leave it out.",
                but(" if p.requires_grad", ""),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        many, k, most = draw.randint(3, 5), draw.randint(2, 4), draw.randint(300, 700)
        unequal = [[draw.randint(1, 6) + rank] for rank in range(4)]
        for who, batches, uses, bucket_bytes in (
            ("2 ranks, 4 samples each", [[4]] * 2, "ab", 170),
            ("4 ranks, unequal samples", unequal, "ab", most),
            (f"{many} ranks, {k} micro-batches", [[2] * k] * many, "ab", 600),
            ("3 ranks, of which one uses one head", [[3]] * 3, "a", 300),
            ("3 ranks, of which one uses the heads in another order", [[3]] * 3, "ba", 300),
            ("1 rank", [[2, 3]], "ab", 600),
        ):
            of = batches, uses, bucket_bytes, draw.randrange(2**31)
            trained = cache(lambda of=of: Trained(answer, *of))
            overlaps = uses == "ab" and len(batches) > 1
            for shown in Trained.starts, Trained.gradients, *[Trained.launches] * overlaps:
                yield Scene(who, lambda shown=shown, trained=trained: shown(trained()))


class Net(torch.nn.Module):
    """Two heads on a trunk, one layer of it frozen, in float64."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        sizes = (5, 7), (7, 7), (7, 6), (6, 6)
        self.trunk = torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes)
        self.a, self.b = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
        self.trunk[1].requires_grad_(False)
        self.register_buffer("scale", torch.rand(3))
        self.double()

    def learnt(self) -> list:
        return [p for p in self.parameters() if p.requires_grad]

    def loss(self, data, uses: str):
        x, y = data
        for layer in self.trunk:
            x = torch.tanh(layer(x))
        return ((sum(getattr(self, head)(x) for head in uses) * self.scale - y) ** 2).sum()


class Trained(Ranks):
    """Two batches by an answer. Rank 1 uses the heads `uses`, the others both."""

    def __init__(self, answer, batches: list[list[int]], uses: str, bucket_bytes: int, seed: int):
        super().__init__(len(batches), seed)
        self.bucket_bytes, self.first = bucket_bytes, seed
        draw = torch.Generator().manual_seed(seed)
        self.data = [
            [
                [torch.randn(n, 8, generator=draw).double().split((5, 3), 1) for n in own]
                for own in batches
            ]
            for _ in range(2)
        ]
        self.uses = [uses if rank == 1 else "ab" for rank in range(self.size)]
        self.nets = [Net(seed + rank) for rank in range(self.size)]
        self.shown = self.run(self.train, answer)

    def train(self, own, group) -> list:
        net, seen, shown = self.nets[group.rank], self.seen[group.rank], []
        for p in net.learnt():
            p.register_hook(lambda gradient: seen.append(("gradient", "", 0)))
        mine = own(net, group, self.bucket_bytes)
        shown.append(flat(net.state_dict().values()))
        for micros in (batch[group.rank] for batch in self.data):
            for at, data in enumerate(micros, 1):
                with mine.no_sync() if at < len(micros) else nullcontext():
                    seen.append(("begin", "", 0))
                    net.loss(data, self.uses[group.rank]).backward()
                    seen.append(("end", "", 0))
            mine.finish(sum(len(x) for x, _ in micros))
            shown.append(flat(p.detach() * 0 if p.grad is None else p.grad for p in net.learnt()))
            net.zero_grad()
        return shown

    def starts(self) -> dict:
        whole = flat(Net(self.first).state_dict().values())
        return {
            "numbers unlike rank 0's at the start": [
                int((own[0] != whole).sum()) for own in self.shown
            ]
        }

    def gradients(self) -> dict:
        """Also, how many numbers of them are not torch's own of all samples."""
        shown = {}
        for at, batch in enumerate(self.data, 1):
            net, samples = Net(self.first), sum(len(x) for own in batch for x, _ in own)
            for own, uses in zip(batch, self.uses):
                sum(net.loss(data, uses) for data in own).backward()
            whole = flat(p.grad for p in net.learnt()) / samples
            off = [(own[at] - whole).abs() > 1e-9 * whole.abs().max() for own in self.shown]
            shown[f"wrong numbers of batch {at}'s gradient"] = [int(each.sum()) for each in off]
            shown[f"batch {at}'s gradient"] = [own[at] for own in self.shown]
        return shown

    def launches(self) -> dict:
        """What travelled in the backwards of the first batch, and in all."""
        sizes = [p.nbytes for p in self.nets[0].learnt()]
        enough = 2 * (sum(sizes) // self.bucket_bytes + 1)
        shown = {}
        for rank, seen in enumerate(self.seen):
            sent = [size for what, _, size in seen if what == "all_reduce" and size > 8]
            cuts = [at for at, (what, _, _) in enumerate(seen) if what in ("begin", "end")]
            parts = [seen[a:b] for a, b in zip(cuts[::2], cuts[1::2])][: len(self.data[0][rank])]
            *quiet, last = [
                [what for what, lane, _ in part if not lane or what == "launch"] for part in parts
            ]
            later = last[last.index("launch") :] if "launch" in last else []
            for name, value in {
                "collectives under no_sync": sum(
                    len(part) - part.count("gradient") - 1 for part in quiet
                ),
                "waits inside the backward": last.count("wait") + last.count("all_reduce"),
                "launches before the backward ends": bool(later),
                "launches when two gradients are to come": later.count("gradient") >= 2,
                "bytes of a bucket beyond the limit": max(
                    0, max(sent) - max(*sizes, self.bucket_bytes)
                ),
                "buckets beyond twice as many as needed": max(0, len(sent) // 2 - enough),
                "times that a gradient is sent": round(sum(sent) / sum(sizes) / 2),
            }.items():
                shown.setdefault(name, []).append(value)
        return shown


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
