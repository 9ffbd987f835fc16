"""Sequences that have not ended: whose turn it is, what each holds, and how it gives that back.
Pure.

An account is a caller, known by name or by address; its members are users that it names itself,
such as the anonymous users of a gateway. The next sequence to be admitted is one of the account
that holds the fewest slots, of two such accounts the one that was served less, and inside an
account the same holds for its members; a member's own sequences come by priority, then by age, but
one that waits longest is passed over only so often.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from model_server.engine.limits import EngineLimits
from model_server.engine.paging.allocation import Allocation
from model_server.engine.request import Begun
from model_server.engine.sequence import Sequence
from model_server.engine.shares import Holder, Peers, fresh_tokens

H = TypeVar("H", bound=Holder)

_PASSED = 32  # admissions of a member that may pass over the one of it that waits longest


class _Member(Holder):
    __slots__ = ("account", "passed", "queue", "unfinished")

    def __init__(self, name: str, charged: float, account: _Account) -> None:
        super().__init__(name, charged)
        self.account = account
        self.passed = 0  # admissions since the one that waits longest was next
        self.queue: list[Sequence] = []  # the next one first
        self.unfinished: list[Sequence] = []  # running, in the middle of their prompts

    @property
    def ready(self) -> bool:
        """True if its next sequence may be admitted: its prompts are computed one by one, but a
        more urgent one need not wait. A victim's last token must be committed first."""
        if not self.queue or not self.queue[0].settled:
            return False
        return all(_urgency(self.queue[0]) < _urgency(other) for other in self.unfinished)

    @property
    def streams(self) -> int:
        return len(self.running) - len(self.unfinished)

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence from the queue. If too many were taken before the one that waits
        longest, it becomes as urgent as the next: nobody waits for ever behind urgent ones."""
        self.queue.remove(sequence)
        if not self.queue or self.queue[0].priority == self.queue[-1].priority:
            self.passed = 0
            return
        oldest = min(self.queue, key=_age)
        waits = oldest is not self.queue[0] and oldest.id < sequence.id
        self.passed = self.passed + 1 if waits else 0
        if self.passed >= _PASSED:
            self.passed = 0
            self.queue.remove(oldest)
            for each in oldest.members:
                each.priority = self.queue[0].priority
            insort(self.queue, oldest, key=_urgency)


class _Account(Holder):
    __slots__ = ("members",)

    def __init__(self, name: str, charged: float) -> None:
        super().__init__(name, charged)
        self.members: Peers[_Member] = Peers()

    @property
    def ready(self) -> bool:
        return self.waiting > 0 and any(member.ready for member in self.members.here.values())


class Accounts:
    """The live sequences of a scheduler by account and member."""

    def __init__(self, most_running: int | None = None) -> None:
        self.waiting = 0
        self.unfinished = 0  # running sequences in the middle of their prompts
        self.closed = False  # only sequences that had a slot before are admitted
        self._most_running = most_running  # of one account; None: as many as there are slots
        self._accounts: Peers[_Account] = Peers()
        self._members: dict[int, _Member] = {}  # by sequence

    def __len__(self) -> int:
        return len(self._accounts.here)

    def live(self, name: str) -> int:
        account = self._accounts.here.get(name)
        return account.live if account is not None else 0

    # Changes

    def add(self, sequence: Sequence) -> None:
        """Take in a sequence, and those that take slots with it, which do not wait themselves."""
        member = self._member(sequence.request.account, sequence.request.member)
        for each in sequence.members:
            self._members[each.id] = member
            member.live += 1
            member.account.live += 1
        self.wait(sequence)

    def wait(self, sequence: Sequence) -> None:
        """Take a new or a preempted sequence into its member's queue."""
        member = self._members[sequence.id]
        insort(member.queue, sequence, key=_urgency)
        self._count_waiting(member, 1)

    def admit(self, sequence: Sequence) -> None:
        """Move a sequence from its queue to a slot, at the beginning of its prompt."""
        member = self._members[sequence.id]
        member.take(sequence)
        self._count_waiting(member, -1)
        member.running += sequence.members
        member.account.running += sequence.members
        self.begin_prompt(sequence)

    def begin_prompt(self, sequence: Sequence) -> None:
        self._members[sequence.id].unfinished.append(sequence)
        self.unfinished += 1

    def finish_prompt(self, sequence: Sequence) -> None:
        self._members[sequence.id].unfinished.remove(sequence)
        self.unfinished -= 1

    def release(self, sequence: Sequence) -> None:
        """Charge for a sequence that loses its slot."""
        member = self._members[sequence.id]
        account = member.account
        if sequence in member.unfinished:
            self.finish_prompt(sequence)
        member.running.remove(sequence)
        account.running.remove(sequence)
        self.charge(sequence)
        sequence.lost = max(sequence.lost, sequence.launched)

    def charge(self, sequence: Sequence) -> None:
        """Charge for what a running sequence computed, before it loses it."""
        member = self._members[sequence.id]
        member.account.members.charge(member, fresh_tokens(sequence))
        self._accounts.charge(member.account, fresh_tokens(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence without a slot."""
        member = self._members.pop(sequence.id)
        account = member.account
        if sequence in member.queue:
            member.queue.remove(sequence)
            self._count_waiting(member, -1)
        member.live -= 1
        account.live -= 1
        if not member.live:
            account.members.leave(member)
        if not account.live:
            self._accounts.leave(account)

    def _member(self, name: str, member_name: str) -> _Member:
        accounts = self._accounts
        account = accounts.here.get(name)
        if account is None:
            account = accounts.here[name] = _Account(name, accounts.start(name))
        members = account.members
        member = members.here.get(member_name)
        if member is None:
            member = _Member(member_name, members.start(member_name), account)
            members.here[member_name] = member
        return member

    def _count_waiting(self, member: _Member, change: int) -> None:
        member.waiting += change
        member.account.waiting += change
        self.waiting += change

    # Choices

    def share(self, sequence: Sequence, running: int) -> float:
        """Return 1 if all streams of the running sequences are of this one's member; else one part
        of those that the member has."""
        streams = self._members[sequence.id].streams
        return 1.0 if streams == running - self.unfinished else 1 / max(1, streams)

    def next(self) -> Sequence | None:
        """Return the sequence to admit next, or None if none may be."""
        if self.closed:
            return min(self._begun(), key=_urgency, default=None)
        ready = [account for account in self._accounts.here.values() if self._may_admit(account)]
        if not ready:
            return None
        return _head(_lightest(ready))

    def turns(self, most: int, done: Collection[int]) -> list[Sequence]:
        """Return one half-done prompt of each account, of the least served accounts first."""
        if self.unfinished == 1 or len(self) == 1:
            least_served: Iterable[_Account] = self._accounts.here.values()
        else:
            least_served = sorted(self._accounts.here.values(), key=_served)
        turns = (self._turn(account, done) for account in least_served)
        return [turn for turn in turns if turn is not None][:most]

    def victim(self) -> Sequence:
        """Return the sequence to preempt when pages run out: the youngest of the heaviest."""
        account = max(self._accounts.here.values(), key=_load)
        return max(account.running, key=self._age)

    @property
    def uneven(self) -> bool:
        """True if some account or member waits and another has two slots more: a cheap test."""
        accounts = self._accounts.here.values()
        return _uneven(accounts) or any(
            _uneven(account.members.here.values()) for account in accounts
        )

    def displaceable(self, newcomer: Sequence) -> Iterator[Sequence]:
        """Yield running sequences that may be preempted for a waiting one, in order.

        Each is the youngest of an account (or member) that would still have more slots than the
        newcomer's, had all before it been preempted: nobody is displaced back and forth. One that
        was preempted before must first have come an eighth further than it was: it loses prompt
        tokens, hundreds of which cost one step, for tokens that cost a step each, and it can be
        displaced only as often as its length can grow by an eighth.
        """
        mine = self._members[newcomer.id]
        yield from self._from(self._accounts.here.values(), mine.account)
        yield from self._from(mine.account.members.here.values(), mine)

    def _from(self, holders: Collection[Holder], mine: Holder) -> Iterator[Sequence]:
        """Yield from the fullest of the holders, as long as they have two slots more than mine."""
        able = {
            holder.name: sorted(filter(_displaceable, holder.running), key=self._age)
            for holder in holders
            if holder is not mine
        }
        slots = {holder.name: len(holder.running) for holder in holders}
        while able:
            name = max(able, key=slots.__getitem__)
            if slots[name] < len(mine.running) + 2:
                return
            if not able[name]:
                del able[name]
                continue
            yield (victim := able[name].pop())
            slots[name] -= victim.width

    def _begun(self) -> Iterator[Sequence]:
        """Yield the waiting sequences that had a slot before."""
        for member in set(self._members.values()):
            yield from (each for each in member.queue if each.started_s)

    def _may_admit(self, account: _Account) -> bool:
        if not account.ready or self._most_running is None:
            return account.ready
        return len(account.running) + _head(account).width <= self._most_running

    def _turn(self, account: _Account, done: Collection[int]) -> Sequence | None:
        """Return the account's half-done prompt whose turn it is: the least served member's."""
        open_prompts = [
            (member.served if len(account.members.here) > 1 else 0.0, _urgency(sequence), sequence)
            for member in account.members.here.values()
            for sequence in member.unfinished
            if sequence.id not in done
        ]
        return min(open_prompts, key=lambda one: one[:2])[2] if open_prompts else None

    def _age(self, sequence: Sequence) -> tuple[int, int, int]:
        """Sort key: the last is the youngest of the member with the most slots."""
        return len(self._members[sequence.id].running), *_urgency(sequence)


def _head(account: _Account) -> Sequence:
    """Return the sequence of an account that would be admitted next."""
    members = account.members.here.values()
    return _lightest([member for member in members if member.ready]).queue[0]


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.id


def _age(sequence: Sequence) -> int:
    return sequence.id


def _displaceable(sequence: Sequence) -> bool:
    launched = max(each.launched for each in sequence.members)
    return not sequence.is_follower and 8 * launched >= 9 * sequence.lost


def _served(holder: Holder) -> float:
    return holder.served


def _load(holder: Holder) -> tuple[int, float]:
    return holder.load


def _lightest(holders: list[H]) -> H:
    return holders[0] if len(holders) == 1 else min(holders, key=_load)


def _uneven(holders: Collection[Holder]) -> bool:
    if len(holders) < 2:
        return False
    most = max(len(holder.running) for holder in holders)
    return any(holder.waiting and len(holder.running) + 2 <= most for holder in holders)


class LiveSequences:
    """All live sequences of a scheduler; those of a group count one by one."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.steps = 0  # scheduled
        self.committed = 0  # steps
        self.now_s = 0.0  # when the next one is scheduled
        self.held = Allocation(limits)
        self.running = self.held.running
        self.accounts = Accounts(limits.max_running_per_account)
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, id: int) -> bool:
        return id in self._sequences

    @property
    def ids(self) -> list[int]:
        return list(self._sequences)

    @property
    def all(self) -> Collection[Sequence]:
        return self._sequences.values()

    def get(self, id: int) -> Sequence | None:
        return self._sequences.get(id)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; the lower its id, the older it is."""
        assert sequence.id not in self._sequences, "ids must be unique"
        for each in sequence.members:
            self._sequences[each.id] = each
        sequence.since = self.steps
        self.accounts.add(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Give the next in line its slots and pages."""
        sequence.started_s = sequence.started_s or self.now_s
        self.accounts.admit(sequence)
        self.held.take(sequence)
        for part in sequence.parts:
            part.admitted(sequence)

    def restart(self, sequence: Sequence) -> None:
        """Take slots and pages away and queue the sequence again, with its group."""
        sequence = sequence.members[0]
        for each in sequence.members:
            self._release(each)
        for part in sequence.parts:
            part.restarted(sequence)
        sequence.since = self.steps
        self.accounts.wait(sequence)

    def begun(self) -> list[Begun]:
        """Return how far each sequence is, of a group its beginning."""
        return [each.begun for each in self._sequences.values() if not each.is_follower]

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence with its group."""
        for each in sequence.members:
            del self._sequences[each.id]
            if each.slot >= 0:
                self._release(each)
            self.accounts.remove(each)
            for part in each.parts:
                part.ended(each)

    def _release(self, sequence: Sequence) -> None:
        """Stop running and free slot and pages, at once (see `scheduler` on steps in flight)."""
        self.accounts.release(sequence)
        self.held.release(sequence)
        for part in sequence.parts:
            part.released(sequence)
