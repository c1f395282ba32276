"""What is wrong with a schedule that should be 1F1B or, if asynchronous, PipeDream with stashing: the mistake, then the mend.

    slots (F = 1, B = 2)   3 (m + p - 1)              live on rank r      min(m, p - r)
    version of F and B     the newest that F met      versions on rank r  p - r

Sources: Narayanan et al. 2021 (arXiv:2006.09503), section 3.2; Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3.
"""

from collections.abc import Iterable

from ..core import Impossible, Trace
from ..schedule import Action, Schedule
from ..simulate import simulate
from .findings import first_finding


def schedule_findings(cls, ranks: int = 4, micro_batches: int = 8, cap: int | None = None) -> list[str]:
    """Sentences about the schedule `cls(ranks, micro_batches)`; empty when it is right.

    cap   most micro-batches that may be live on any rank (default: as many as there are ranks)

    An asynchronous class that has a `version` of its own also says by `versions_held(stage, updates)` which versions the
    stage keeps once it has made so many updates.
    """
    cap = ranks if cap is None else cap

    def found() -> list[str]:
        schedule = cls(ranks, micro_batches)
        order = actions_of(schedule)
        if findings := nothing(order) or (not schedule.asynchronous and updates_in_a_batch(order, micro_batches)):
            return findings
        for actions in order:
            for action in actions:
                version_of(schedule, action)  # asked first, so that what it raises is told of it
        trace = simulate(schedule, {"F": 1, "B": 2})
        findings = live_findings(trace, order, schedule, cap) or time_findings(trace, order, schedule)
        if schedule.asynchronous:
            findings += version_findings(order, schedule) or held_findings(cls(ranks, micro_batches + ranks), micro_batches + 1)
        return findings

    return first_finding([found], "Your class", f"Try it alone: {getattr(cls, '__name__', 'cls')}({ranks}, {micro_batches}).steps(0).")


# -- the order --------------------------------------------------------------------------------------------------------


def actions_of(schedule: Schedule) -> list[list[Action]]:
    """Each rank's actions in order; Impossible where `steps` gave something else."""
    for rank in range(schedule.ranks):
        steps = called(schedule, "steps", rank)
        if not isinstance(steps, (list, tuple)):
            raise Impossible(f"steps({rank}) gave {steps!r}: return a list of actions, such as [F({rank}, 0), B({rank}, 0)].")
        for step in steps:
            if not isinstance(step, Action) and not (isinstance(step, tuple) and step and all(isinstance(a, Action) for a in step)):
                raise Impossible(f"steps({rank}) holds {step!r}, which is no action: write F({rank}, 0) or B({rank}, 0).")
            for action in (step,) if isinstance(step, Action) else step:
                if not all(whole(number) for number in action[1:]):
                    raise Impossible(f"steps({rank}) holds {action.kind}({action.stage}, {action.micro_batch}): a stage and a "
                                     "micro-batch are whole numbers, counted from 0.")
    return [[action for step in steps for action in step] for steps in schedule.over(1)]


def called(schedule: Schedule, method: str, *given):
    """What a method of a student's class answers; Impossible, naming the call, where it raises."""
    try:
        return getattr(schedule, method)(*given)
    except Impossible:
        raise
    except Exception as error:
        said = ", ".join(str(value) for value in given)
        raise Impossible(f"{method}({said}) raised {type(error).__name__}: {error}. Try that call alone.") from error


def whole(number) -> bool:
    """Whether it counts something: an int, and no True or False."""
    return isinstance(number, int) and not isinstance(number, bool)


def nothing(order) -> list[str]:
    if any(order):
        return []
    return ["Nothing ran: F0 is missing on rank 0. Let steps(rank) return the rank's forwards and backwards in their order."]


def updates_in_a_batch(order, micro_batches: int) -> list[str]:
    """An update between the actions of one batch gives its micro-batches different weights; one is named after the last of them."""
    for rank, actions in enumerate(order):
        first = next((i for i, a in enumerate(actions) if a.kind == "U"), len(actions))
        late = [a for a in actions[first:] if a.kind in "FB"]
        if late and (forwards := [a for a in actions if a.kind == "F"]):
            return [f"Micro-batch {late[0].micro_batch} saw other weights than {forwards[0].micro_batch} on rank {rank}: "
                    f"U{actions[first].micro_batch} comes before {named(late[0])}. Synchronous 1F1B updates once, after the flush: "
                    "leave U out, or make it each rank's last action."]
        if wrong := [a for a in actions[first:] if a.kind == "U" and a.micro_batch != micro_batches - 1]:
            return [f"{named(wrong[0])} on rank {rank} applies the gradients of all micro-batches up to {micro_batches - 1}, so its name is "
                    f"U{micro_batches - 1}: write that, or leave U out."]
    return []


def live_findings(trace: Trace, order, schedule: Schedule, cap: int) -> list[str]:
    """More micro-batches alive than 1F1B needs, or than the cap allows."""
    p, m = schedule.ranks, schedule.micro_batches
    live = [trace.peak_live(rank) for rank in range(p)]
    worst = max(range(p), key=lambda rank: live[rank])
    if live[worst] > cap:
        return [f"{trace.makespan:g} slots, but {live[worst]} live on rank {worst}: the cap is {cap}. A backward frees what its "
                f"forward keeps, so start backwards early: rank {worst} needs {min(m, p - worst)} before its first one."]
    too_many = [rank for rank in range(p) if live[rank] > min(m, p - rank)]
    if not too_many:
        return []
    warm_ups = {warm_up(actions) for actions in order}
    rank = too_many[-1]
    who = f"Each rank warms up {warm_ups.pop()}: the last" if len(warm_ups) == 1 and rank == p - 1 else f"Rank {rank}"
    return [f"{who} holds {live[rank]} live where {min(m, p - rank)} {'is' if min(m, p - rank) == 1 else 'are'} enough. "
            "Let rank r warm up min(m, p - r - 1): the later its stage, the sooner its first gradient comes."]


def time_findings(trace: Trace, order, schedule: Schedule) -> list[str]:
    """Longer than (m + p - 1)(F + B)."""
    p, m = schedule.ranks, schedule.micro_batches
    best = 3 * (m + p - 1)
    if trace.makespan <= best:
        return []
    told = f"{trace.makespan:g} slots where {best} are possible"
    for rank, actions in enumerate(order):
        if (has := warm_up(actions)) < (needs := min(m, p - rank) - 1):
            return [f"{told}: rank {rank} warms up {has} and then waits. Let it do {needs} forwards before it alternates."]
    return [f"{told}: some rank waits although work is there. After its warm-up let each rank alternate one forward and one backward."]


def warm_up(actions: list[Action]) -> int:
    """Forwards before the one that comes just ahead of the first backward."""
    return next((i for i, a in enumerate(actions) if a.kind != "F"), len(actions)) - 1


# -- weight versions --------------------------------------------------------------------------------------------------


def version_findings(order, schedule: Schedule) -> list[str]:
    """A version that is not there, a backward on other weights than its forward, an update of another version than the newest,
    a delay that nobody needs."""
    stale, misnumbered, used = "", "", []  # used[rank][t]: by the forward of micro-batch t
    for rank, actions in enumerate(order):
        updates, before = 0, Action("", rank, 0)
        used.append({})
        for action in actions:
            version, who, t = version_of(schedule, action), f"{named(action)} on rank {rank}", action.micro_batch
            if action.kind == "U":
                if before.kind != "B":
                    return [f"{who} does not come right after a backward: PipeDream updates after each one."]
                if before.micro_batch != t:
                    return [f"{who} comes right after {named(before)} and applies its gradient: call it U{before.micro_batch}."]
                if version != updates and not misnumbered:
                    misnumbered = f"{who} says version {version}, but it turns version {updates} into {updates + 1}: its version is {updates}."
                updates += 1
            elif action.kind == "F":
                used[rank][t] = version
                if version < 0:
                    return [f"{who} asks for version {version}: versions are counted from 0, which is the newest until the first update."]
                if version > updates:
                    return [f"{who} asks for version {version}, but only {updates} update{'s have' if updates != 1 else ' has'} "
                            "been made there by then. Use the newest that is there."]
                if version < updates and not stale:
                    stale = f"{who} used version {version} though {updates} is there. Use the newest at each forward."
            elif version != used[rank][t]:
                return [f"{who} used version {version}, F{t} version {used[rank][t]}: that is the gradient of no function. "
                        "A backward must use the very version of its forward."]
            before = action
    if stale:
        return [delay(used, schedule.ranks) or stale]
    return [misnumbered] if misnumbered else []


def delay(used: list[dict[int, int]], ranks: int) -> str:
    """Of forwards that could have used newer weights: a delay that all stages share, or no update used at all; "" otherwise."""
    newest = max(max(versions.values()) for versions in used)
    last = max(used[0])
    common = last - used[0][last]
    if not newest:
        return (f"No forward ever used an update: all {last + 1} micro-batches used version 0. Use the newest at each forward."
                if last >= ranks else "")
    if ranks == 1 or any(version != max(0, t - common) for versions in used for t, version in versions.items()):
        return ""
    return (f"All stages delayed {common}: that is vertical sync. A stage needs to wait only for updates that have not "
            f"reached it: {', '.join(str(min(last, ranks - 1 - rank)) for rank in range(ranks))}.")


def version_of(schedule: Schedule, action: Action) -> int:
    """What the class says of an action; Impossible where that is no version."""
    version = called(schedule, "version", action)
    if not whole(version):
        raise Impossible(f"version({action}) gave {version!r}: return the number of updates that its weights have behind them.")
    return version


def held_findings(schedule: Schedule, until: int) -> list[str]:
    """Versions lost too early or kept too long; `schedule` runs on after `until` updates, so that the drain blurs nothing."""
    if not hasattr(schedule, "versions_held"):  # the library's own versions are kept by techniques/weight_versions.py
        own = not type(schedule).version.__module__.startswith(f"{Schedule.__module__.partition('.')[0]}.")
        return ["Your class does not say which versions a stage keeps: write versions_held(stage, updates), which returns their numbers."] if own else []
    for rank, actions in enumerate(actions_of(schedule)):
        update_at = [i for i, action in enumerate(actions) if action.kind == "U"]
        surplus = ""
        for newest in range(until + 1):
            ahead = actions[update_at[newest - 1] + 1:] if newest else actions
            users = {version_of(schedule, a): a for a in reversed(ahead) if a.kind in "FB"}
            needed = {version for version in users if version <= newest} | {newest}
            answer = called(schedule, "versions_held", rank, newest)
            held = set(answer) if isinstance(answer, Iterable) else {None}
            if not all(map(whole, held)):
                return [f"versions_held({rank}, {newest}) gave {answer!r}: return the numbers of the versions that the stage keeps, such as [{newest}]."]
            if lost := sorted(needed - held):
                why = f"{named(users[lost[0]])} still needs it" if lost[0] in users else "the next update starts from it"
                return [f"Rank {rank} does not hold version {lost[0]} after {newest} update{'s' if newest != 1 else ''}, and {why}. "
                        "Keep each version until its last backward."]
            if held > needed:
                surplus = (f"{len(held)} versions on rank {rank} after {newest} updates; {len(needed)} "
                           f"{'is' if len(needed) == 1 else 'are'} needed. Drop a version once its last backward has run.")
        if surplus:
            return [surplus]
    return []


def named(action: Action) -> str:
    return f"{action.kind}{action.micro_batch}"
