"""Weight stashing: which version each action of PipeDream's order uses, and which a stage keeps.

    a forward uses the newest version there; its backward the same; update t turns version t into t + 1
    a stage keeps a version until the last backward that uses it: p - s versions on stage s

The order itself tells how many updates a stage has made before each action, so what is right is
counted from it and never from what an answer says.
Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3.
"""

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong
from .one_f_one_b import orders

RIGHT = """
from bigtrain_lab.schedules.pipedream import PipeDream

class answer(PipeDream):
    def version(self, action):
        wait = self.ranks - 1 - action.stage
        if action.kind == "U":
            return action.micro_batch
        return max(0, action.micro_batch - wait)

    def versions_held(self, stage, updates):
        wait = self.ranks - 1 - stage
        return range(max(0, updates - wait), updates + 1)
"""
COUNTED = """
from bigtrain_lab.schedules.pipedream import PipeDream

class answer(PipeDream):
    def version(self, action):
        if action.kind == "U":
            return action.micro_batch
        done = 0
        for step in self.steps(action.stage):
            if step[0] == action._replace(kind="F"):
                return done
            done += step[0].kind == "U"

    def versions_held(self, stage, updates):
        held = [0]
        for update in range(updates):
            held.append(update + 1)
            if update >= self.ranks - 1 - stage:
                held.pop(0)
        return held
"""
OWN_ORDER = """
from bigtrain_lab.schedule import Schedule, F, B, U

class answer(Schedule):
    asynchronous = True

    def steps(self, rank):
        warm = min(self.micro_batches, self.ranks - rank - 1)
        for i in range(self.micro_batches + warm):
            if i < self.micro_batches:
                yield F(rank, i)
            if i >= warm:
                yield B(rank, i - warm)
                yield U(rank, i - warm)

    def version(self, action):
        import numpy as np
        lag = {"U": 0, "F": self.ranks - 1 - action.stage, "B": self.ranks - 1 - action.stage}[action.kind]
        return np.int64(max(action.micro_batch - lag, 0))

    def versions_held(self, stage, updates):
        return {v for v in range(updates + 1) if v + self.ranks - stage > updates}
"""
RECURSIVE = (
    RIGHT.replace("        wait = self.ranks - 1 - action.stage\n", "", 1)
    .replace(
        "return max(0, action.micro_batch - wait)",
        "return 0 if action.stage < 0 else max(0, action.micro_batch + action.stage + 1 - self.ranks)",
    )
    .replace(
        "return range(max(0, updates - wait), updates + 1)",
        "return (v for v in range(updates, -1, -1) if updates - v <= wait)",
    )
)
LIBRARYS = """
import numpy as np
from bigtrain_lab.schedules.pipedream import PipeDream

class answer(PipeDream):
    def versions_held(self, stage, updates):
        return np.arange(max(0, updates + 1 - self.ranks + stage), updates + 1)
"""
USED, HELD, IF_U = (
    "return max(0, action.micro_batch - wait)",
    "return range(max(0, updates - wait), updates + 1)",
    'if action.kind == "U":',
)
WAIT = "wait = self.ranks - 1 - action.stage"
BACKWARD = "A backward uses other weights than its forward: that is the gradient of no function, so let it use the very same version."
NEWEST = "A forward leaves newer weights unused: let it use the newest version that its stage has by then."
FUTURE = "A forward asks for a version that nobody has made yet: count the updates that its stage has made by then."
EARLY = (
    "A version is dropped while a backward still needs it: keep it until its last backward has run."
)
HOARD = (
    "Versions are kept that no backward needs any more: drop each once its last backward has run."
)
EVERYWHERE = "All stages wait alike, which is vertical sync: a stage waits only for the updates that have not reached it."
COUNTS = "A second training at the same sizes gets other versions: compute them from the action alone, and keep no count between calls."
SYNCHRONOUS = "Your order is not PipeDream's: leave `asynchronous` and `steps` as they are given, an update right after each backward."


class Stashing(Topic):
    name = "stashing"
    allows = (
        "bigtrain_lab.schedule",
        "bigtrain_lab.core",
        "bigtrain_lab.schedules.pipedream",
        "bigtrain_lab.schedules.one_f_one_b",
    )
    forbids = ("bigtrain_lab.schedules.pipedream.PipeDream.version",)
    hints = (
        "On which weights does the last stage run forward t? How many updates has the first stage made by then?",
        "Between forward t and its backward a stage makes updates. Count them for stage s: which versions lie between?",
        "Stage s lacks p - 1 - s updates at each forward. It keeps the versions from that one up to the newest.",
    )
    right = {
        "by the formula": RIGHT,
        "counted": COUNTED,
        "an order of its own": OWN_ORDER,
        "from the last stage": RECURSIVE,
        "the library's": LIBRARYS,
    }
    wrong = {
        "synchronous": Wrong(
            SYNCHRONOUS, (("    def version(", "    asynchronous = False\n\n    def version("),)
        ),
        "drains": Wrong(
            SYNCHRONOUS,
            (
                (
                    "    def version(",
                    "    def steps(self, rank):\n        order = [s for s in super().steps(rank) if s[0].kind != 'U']\n"
                    "        return order + [s for s in super().steps(rank) if s[0].kind == 'U']\n\n    def version(",
                ),
            ),
        ),
        "no stash": Wrong(BACKWARD, ((IF_U, 'if action.kind != "F":'),)),
        "the backward lags too": Wrong(
            BACKWARD, ((USED, "return max(0, action.micro_batch - wait - (action.kind == 'B'))"),)
        ),
        "the backward on the first version": Wrong(
            BACKWARD,
            ((USED, "return max(0, action.micro_batch - wait) if action.kind == 'F' else 0"),),
        ),
        "the micro-batch": Wrong(FUTURE, ((USED, "return action.micro_batch"),)),
        "one too new": Wrong(FUTURE, ((USED, "return max(0, action.micro_batch - wait + 1)"),)),
        "from the wrong end": Wrong(
            "Late stages wait longest in yours: it is the first stage whose gradient comes back last.",
            ((WAIT, "wait = action.stage"),),
        ),
        "negative": Wrong(
            "Your versions begin below 0: count them from 0, which is the newest until the first update.",
            ((USED, "return action.micro_batch - wait"),),
        ),
        "the first": Wrong(
            "No forward ever uses an update: let each use the newest version there.",
            ((USED, "return 0"),),
        ),
        "vertical sync": Wrong(EVERYWHERE, ((WAIT, "wait = self.ranks - 1"),)),
        "one too old": Wrong(NEWEST, ((WAIT, "wait = self.ranks - action.stage"),)),
        "twice as old": Wrong(NEWEST, ((WAIT, "wait = 2 * (self.ranks - 1 - action.stage)"),)),
        "stops at 8": Wrong(NEWEST, ((USED, "return min(8, max(0, action.micro_batch - wait))"),)),
        "a fixed depth": Wrong(
            "Your wait does not follow the number of ranks: compute it from the sizes, and not for one of them.",
            ((WAIT, "wait = max(0, 3 - action.stage)"),),
        ),
        "the update": Wrong(
            "An update names another version than the one that it changes: update t turns version t into t + 1.",
            (("return action.micro_batch\n", "return action.micro_batch + 1\n"),),
        ),
        "the update's lag": Wrong(
            "An update names another version than the one that it changes: update t turns version t into t + 1.",
            ((IF_U, "if False:"),),
        ),
        "keeps all": Wrong(HOARD, ((HELD, "return range(updates + 1)"),)),
        "keeps one more": Wrong(
            HOARD, ((HELD, "return range(max(0, updates - wait - 1), updates + 1)"),)
        ),
        "keeps as many everywhere": Wrong(
            "Every stage keeps as many versions as the first: a later stage needs fewer, since its backwards come sooner.",
            ((HELD, "return range(max(0, updates - self.ranks + 1), updates + 1)"),),
        ),
        "hoards later": Wrong(
            HOARD,
            ((HELD, "return range(max(0, updates - wait) if updates < 11 else 0, updates + 1)"),),
        ),
        "keeps the newest": Wrong(EARLY, ((HELD, "return [updates]"),)),
        "keeps nothing": Wrong(EARLY, ((HELD, "return []"),)),
        "keeps one fewer": Wrong(
            EARLY, ((HELD, "return range(max(0, updates - wait + (wait > 0)), updates + 1)"),)
        ),
        "keeps two": Wrong(EARLY, ((HELD, "return {max(0, updates - wait), updates}"),)),
        "nothing at the end": Wrong(
            "The newest version is not kept: the next update starts from it, and after the last it is what was trained.",
            (
                (
                    HELD,
                    "return range(max(0, updates - wait), updates + 1) if updates < self.micro_batches else []",
                ),
            ),
        ),
        "a count of its own": Wrong(
            COUNTS,
            (
                (
                    USED,
                    "if action == (action.kind, 0, 0) and action.kind == 'F': type(self).seen = getattr(type(self), 'seen', 0) + 1\n"
                    "        return max(0, action.micro_batch - wait) + (getattr(type(self), 'seen', 1) > 3)",
                ),
            ),
        ),
        "without the newest": Wrong(
            "The newest version is not kept: the next update starts from it.",
            ((HELD, "return range(max(0, updates - wait), updates)"),),
        ),
        "not yet made": Wrong(
            "A stage keeps a version that has not been made yet: after u updates the newest is u.",
            ((HELD, "return range(max(0, updates - wait), updates + 2)"),),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        for p, m in (
            (4, 8),
            (4, 8),
            (draw.randint(5, 6), draw.randint(7, 12)),
            (draw.randint(2, 3), draw.randint(10, 14)),
            (draw.randint(3, 5), 2),
            (1, 3),
        ):
            who = f"p = {p}, m = {m}"
            yield Scene(
                who,
                lambda p=p, m=m: {
                    "asynchronous": bool(answer(p, m).asynchronous),
                    "updates after each rank's backwards": after(orders(answer, p, m)),
                },
            )
            yield Scene(who, lambda p=p, m=m: versions(answer, p, m))
            yield Scene(f"p = {p}, m = {m + p + 14}", lambda p=p, m=m: kept(answer, p, m + p + 14))


def after(order: tuple) -> list:
    """For each rank the places of its updates, and what they apply."""
    return [
        [[place, a.micro_batch] for place, (a,) in enumerate(steps) if a.kind == "U"]
        for steps in order
    ]


def whole(number, call: str) -> int:
    """A version as an answer may give it."""
    try:
        if int(number) == number and not isinstance(number, bool):
            return int(number)
    except (TypeError, ValueError):
        pass
    raise Refused(
        f"{call} gave {number!r}: a version is a whole number, the updates that its weights have behind them."
    )


def versions(answer, p: int, m: int) -> dict:
    """How far the version of each action is from the one that the order makes right."""
    schedule = answer(p, m)
    lacks, beside, named = {}, {}, {}
    for steps in orders(answer, p, m):
        made, used = 0, {}
        for action in (a for (a,) in steps):
            version = whole(schedule.version(action), f"version({action})")
            if action.kind == "F":
                used[action.micro_batch] = version
                lacks[f"updates there that {action} does not use"] = made - version
            elif action.kind == "B":
                beside[f"version of {action} less its forward's"] = version - used.get(
                    action.micro_batch, -1
                )
            else:
                named[f"version of {action} less the updates made"] = version - made
                made += 1
    return lacks | beside | named


def kept(answer, p: int, m: int) -> dict:
    """After each number of updates: how many versions are lost and, before the drain, how many are too many."""
    schedule = answer(p, m)
    if not hasattr(schedule, "versions_held"):
        raise Refused(
            "Your class does not say which versions a stage keeps: write versions_held(stage, updates), which returns their numbers."
        )
    shown = {}
    for stage, steps in enumerate(orders(answer, p, m)):
        flat, newest, used = [a for (a,) in steps], 0, {}
        for action in flat:
            used.update({action.micro_batch: newest} if action.kind == "F" else {})
            newest += action.kind == "U"
        ends = [-1] + [place for place, action in enumerate(flat) if action.kind == "U"]
        for updates in range(m + 1):
            needed = {
                used[a.micro_batch]
                for a in flat[ends[updates] + 1 :]
                if a.kind == "B" and used[a.micro_batch] <= updates
            } | {updates}
            call = f"versions_held({stage}, {updates})"
            held = {
                whole(version, call)
                for version in listed(schedule.versions_held(stage, updates), stage, updates)
            }
            shown[f"versions that {call} lost"] = len(needed - held)
            if updates < m - p:
                shown[f"versions that {call} need not keep"] = len(held - needed)
    return shown


def listed(given, stage: int, updates: int) -> list:
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise Refused(
            f"versions_held({stage}, {updates}) gave {given!r}: return the numbers of the versions that the stage keeps."
        )
    return list(given)
