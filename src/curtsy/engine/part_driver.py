"""Driver of the parts of a page, such as its scripts: those from its own site are charged, but do not wait."""

from __future__ import annotations

import math

from curtsy.core.decision import Go, Lease, Settled
from curtsy.core.effects import Enter, Settle
from curtsy.core.outcome import Kind
from curtsy.engine.context import HeldResources
from curtsy.engine.driver import Driver
from curtsy.engine.gate import Answer, Ticket
from curtsy.engine.gate_steps import followed, settled
from curtsy.engine.store_driver import Procedure, Update

_NO_SLOT = -1
"""Number of the lease of a part: it holds no slot."""


class PartDriver(Driver):
    """Driver whose requests leave in the turn of their page.

    A host that rests, is paused, has spent its budget or has an open breaker refuses them. A status that asks for a
    rest is recorded. A redirect to another site waits as any request does.
    """

    def _enter(self, effect: Enter, resources: HeldResources) -> Answer | Procedure[Answer]:
        return super()._enter(effect, resources) if effect.foreign else self._follow(effect)

    def _follow(self, effect: Enter) -> Procedure[Answer]:
        policy = effect.policy
        refused = yield Update(effect.key, followed(policy))
        return refused or Ticket(effect.key, policy, Go(Lease(_NO_SLOT, 0, policy.lease, False)), 0.0, math.inf)

    def _settle(self, effect: Settle, resources: HeldResources) -> Settled | Procedure[Settled]:
        is_follower = resources.ticket is None
        return self._note(effect) if is_follower else super()._settle(effect, resources)

    def _note(self, effect: Settle) -> Procedure[Settled]:
        ticket, outcome = effect.ticket, effect.outcome
        assert isinstance(ticket, Ticket)
        if outcome.kind is not Kind.SLOWED and outcome.retry_after is None:
            return Settled(0.0)
        state: Settled = (yield Update(ticket.key, settled(ticket.policy, None, outcome)))[0]
        return state
