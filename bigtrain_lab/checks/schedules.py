"""What is wrong with a schedule that should be 1F1B or, if asynchronous, PipeDream with stashing: the mistake, then the mend.

    slots (F = 1, B = 2)   3 (m + p - 1)              live on rank r      min(m, p - r)
    version of F and B     the newest that F met      versions on rank r  p - r

Sources: Narayanan et al. 2021 (arXiv:2006.09503), section 3.2; Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3.
"""

from ..core import Impossible, Trace
from ..schedule import Action, Schedule
from ..simulate import simulate


def schedule_findings(cls, ranks: int = 4, micro_batches: int = 8, cap: int | None = None) -> list[str]:
    """Sentences about the schedule `cls(ranks, micro_batches)`; empty when it is right.

    cap   most micro-batches that may be live on any rank (default: as many as there are ranks)

    Where an asynchronous class has a method `versions_held(stage, updates)`, the versions that the stage keeps once it
    has made so many updates, that is checked too.
    """
    cap = ranks if cap is None else cap
    try:
        schedule = cls(ranks, micro_batches)
        order = actions_of(schedule)
        if findings := nothing(order) or (not schedule.asynchronous and updates_in_a_batch(order)):
            return findings
        trace = simulate(schedule, {"F": 1, "B": 2})
        findings = live_findings(trace, order, schedule, cap) or time_findings(trace, order, schedule)
        if schedule.asynchronous:
            wrong = version_findings(order, schedule)
            if not wrong and hasattr(schedule, "versions_held"):  # which are needed follows from which are used
                wrong = held_findings(cls(ranks, micro_batches + ranks), micro_batches + 1)
            findings += wrong
        return findings
    except Impossible as error:
        return [str(error)]
    except Exception as error:  # a student's code: whatever it raises is a finding
        return [f"Your class raised {type(error).__name__}: {error}. Try it alone: {getattr(cls, '__name__', 'cls')}({ranks}, {micro_batches}).steps(0)."]


# -- the order --------------------------------------------------------------------------------------------------------


def actions_of(schedule: Schedule) -> list[list[Action]]:
    """Each rank's actions in order; Impossible where `steps` gave something else."""
    for rank in range(schedule.ranks):
        steps = schedule.steps(rank)
        if not isinstance(steps, (list, tuple)):
            raise Impossible(f"steps({rank}) gave {steps!r}: return a list of actions, such as [F({rank}, 0), B({rank}, 0)].")
        for step in steps:
            if not isinstance(step, Action) and not (isinstance(step, tuple) and step and all(isinstance(a, Action) for a in step)):
                raise Impossible(f"steps({rank}) holds {step!r}, which is no action: write F({rank}, 0) or B({rank}, 0).")
    return [[action for step in steps for action in step] for steps in schedule.over(1)]


def nothing(order) -> list[str]:
    if any(order):
        return []
    return ["Nothing ran: F0 is missing on rank 0. Let steps(rank) return the rank's forwards and backwards in their order."]


def updates_in_a_batch(order) -> list[str]:
    """An update between the actions of one batch gives its micro-batches different weights."""
    for rank, actions in enumerate(order):
        first = next((i for i, a in enumerate(actions) if a.kind == "U"), len(actions))
        late = [a for a in actions[first:] if a.kind in "FB"]
        if late and (forwards := [a for a in actions if a.kind == "F"]):
            return [f"Micro-batch {late[0].micro_batch} saw other weights than {forwards[0].micro_batch} on rank {rank}: "
                    f"U{actions[first].micro_batch} comes before {named(late[0])}. Synchronous 1F1B updates once, after the flush: "
                    "leave U out, or make it each rank's last action."]
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
    """A backward on other weights than its forward, a version that is not there yet, a delay that nobody needs."""
    p, delays, needed, stale = schedule.ranks, {}, {}, ""
    for rank, actions in enumerate(order):
        updates, forwards, last = 0, {}, ""
        for action in actions:
            kind, _, t = action
            if kind == "U":
                if last != "B":
                    return [f"U{t} on rank {rank} does not come right after a backward: PipeDream updates after each one."]
                updates += 1
            else:
                used = schedule.version(action)
                if kind == "F":
                    forwards[t], delays[rank], needed[rank] = used, t - used, t - updates
                    if used > updates:
                        return [f"{named(action)} on rank {rank} asks for version {used}, but only {updates} "
                                f"update{'s have' if updates != 1 else ' has'} been made there by then. Use the newest that is there."]
                    if used < updates and not stale:
                        stale = f"{named(action)} on rank {rank} used version {used} though {updates} is there. Use the newest at each forward."
                elif used != forwards[t]:
                    return [f"{named(action)} on rank {rank} used version {used}, F{t} version {forwards[t]}: that is the gradient "
                            "of no function. A backward must use the very version of its forward."]
            last = kind
    if stale and p > 1 and len(set(delays.values())) == 1:
        return [f"All stages delayed {delays[0]}: that is vertical sync. A stage needs to wait only for updates that have not "
                f"reached it: {', '.join(str(needed[rank]) for rank in range(p))}."]
    return [stale] if stale else []


def held_findings(schedule: Schedule, until: int) -> list[str]:
    """Versions lost too early or kept too long; `schedule` runs on after `until` updates, so that the drain blurs nothing."""
    for rank, actions in enumerate(actions_of(schedule)):
        update_at = [i for i, action in enumerate(actions) if action.kind == "U"]
        surplus = ""
        for newest in range(until + 1):
            ahead = actions[update_at[newest - 1] + 1:] if newest else actions
            users = {schedule.version(a): a for a in reversed(ahead) if a.kind in "FB"}
            needed = {version for version in users if version <= newest} | {newest}
            held = set(schedule.versions_held(rank, newest))
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
