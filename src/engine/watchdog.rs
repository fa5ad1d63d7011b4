//! The watchdog: renewing what is due, together, and telling what is lost. The keeper calls; the state decides.

use std::sync::atomic::Ordering::Relaxed;

use super::state::{Phase, State};
use super::{Io, Tag};
use crate::clock::Moment;
use crate::error::{Error, LostReason};
use crate::lease::Lease;
use crate::wire::{Answer, Failure, Op, RefusalKind, Renewal, Reply, ThreadId};

impl State {
    /// A hold's timer: renewal, loss, a retry. What is to be renewed is added to `due`.
    pub(super) fn look_at_hold(&mut self, io: &Io, thread: ThreadId, now: Moment, due: &mut Vec<ThreadId>) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        if hold.look_at.is_some_and(|at| at > now) {
            return;
        }
        hold.look_at = None;
        match hold.phase {
            Phase::Asked { .. } => {}
            Phase::Releasing(_) => self.retry_release(io, thread, now),
            Phase::Doubtful(_) => self.clear_doubt(io, thread, now),
            Phase::Held => {
                if hold.shared.lost().is_some() {
                    return self.lose(io, thread, LostReason::Expired);
                }
                if hold.renew.until.is_some_and(|until| now >= until) && hold.renew.at.take().is_some() {
                    tracing::info!(lock = %hold.name, owner = %hold.owner, "held for its maximum: not renewed any more");
                }
                if hold.renew.at.is_some_and(|at| at <= now) && !hold.renew.in_flight {
                    hold.renew.in_flight = true;
                    due.push(thread);
                }
                let next = match hold.renew.in_flight {
                    true => hold.shared.deadline(),
                    false => hold.next_look(),
                };
                let retry = hold.settle_failures > 0;
                self.look_at_hold_at(io, thread, next);
                if retry {
                    self.settle(io, thread);
                }
            }
        }
    }

    /// Sends what is due, in batches; none waits for another.
    pub(super) fn renew(&mut self, io: &Io, due: &[ThreadId]) {
        for batch in due.chunks(io.config.watchdog_batch) {
            // One of them may have been lost since it was found due.
            let holds: Vec<_> = batch.iter().filter_map(|t| Some((self.holds.get(t)?.name.clone(), *t))).collect();
            let threads: Vec<_> = holds.iter().map(|(_, thread)| *thread).collect();
            if !holds.is_empty() {
                io.push_own(Op::Renew { holds, lease: io.watchdog_lease }, Tag::Renew(threads));
            }
        }
    }

    pub(super) fn answered_renew(&mut self, io: &Io, threads: &[ThreadId], answer: Answer) {
        let results = match answer.result {
            Ok(Reply::Renewed(results)) if results.len() == threads.len() => results,
            other => {
                tracing::warn!(holds = threads.len(), outcome = ?other, "a renewal failed; trying again");
                for thread in threads {
                    self.renewal_failed(io, *thread);
                }
                return;
            }
        };
        let lease = io.watchdog_lease;
        for (thread, result) in threads.iter().zip(results) {
            let Some(hold) = self.holds.get_mut(thread) else { continue };
            hold.renew.in_flight = false;
            if !matches!(hold.phase, Phase::Held) {
                continue;
            }
            match result {
                Renewal::Renewed => {
                    hold.shared.raise_deadline(lease.deadline(answer.handed));
                    hold.renew.failures = 0;
                    if hold.watched > 0 {
                        hold.renew.at = Some(io.renewal_due(answer.handed, lease));
                    }
                    let next = hold.next_look();
                    io.stats.renewals.fetch_add(1, Relaxed);
                    self.look_at_hold_at(io, *thread, next);
                }
                Renewal::NotHeld => self.lose(io, *thread, LostReason::Gone),
                Renewal::Failed(refusal) if refusal.kind == RefusalKind::WrongType => {
                    self.lose(io, *thread, LostReason::WrongType);
                }
                Renewal::Failed(refusal) => {
                    tracing::warn!(lock = %hold.name, error = %refusal.message, "a renewal failed; trying again");
                    self.renewal_failed(io, *thread);
                }
            }
        }
    }

    fn renewal_failed(&mut self, io: &Io, thread: ThreadId) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        hold.renew.in_flight = false;
        if !matches!(hold.phase, Phase::Held) || hold.watched == 0 {
            return;
        }
        hold.renew.failures += 1;
        io.stats.late.fetch_add(1, Relaxed);
        let at = Moment::now().after(io.backoff(hold.renew.failures));
        hold.renew.at = Some(at);
        self.look_at_hold_at(io, thread, at);
    }

    /// The connection is back: what could not be renewed is renewed at once.
    pub(super) fn renew_failed_now(&mut self, io: &Io, now: Moment) {
        let late: Vec<_> = self.holds.iter().filter(|(_, h)| h.renew.failures > 0).map(|(t, _)| *t).collect();
        for thread in late {
            if let Some(hold) = self.holds.get_mut(&thread)
                && hold.renew.at.is_some()
            {
                hold.renew.at = Some(now);
                self.look_at_hold_at(io, thread, now);
            }
        }
    }

    /// The machine slept: every deadline is looked at, every renewal is due.
    pub(super) fn woke_from_suspend(&mut self, io: &Io, now: Moment) {
        let threads: Vec<_> = self.holds.keys().copied().collect();
        for thread in threads {
            if let Some(hold) = self.holds.get_mut(&thread) {
                hold.renew.at = hold.renew.at.map(|_| now);
                self.look_at_hold_at(io, thread, now);
            }
        }
    }

    /// The answer to "is our field still there?".
    pub(super) fn answered_check(&mut self, io: &Io, thread: ThreadId, answer: &Answer) {
        if !self.holds.get(&thread).is_some_and(|hold| matches!(hold.phase, Phase::Held)) {
            return;
        }
        match &answer.result {
            Ok(Reply::HoldCount(0)) => self.lose(io, thread, LostReason::Gone),
            Err(Failure::Refused(refusal)) if refusal.kind == RefusalKind::WrongType => {
                self.lose(io, thread, LostReason::WrongType);
            }
            _ => {}
        }
    }

    pub(super) fn answered_extend(
        &mut self,
        io: &Io,
        thread: ThreadId,
        lease: Lease,
        answer: Answer,
    ) -> Result<(), Error> {
        let Some(hold) = self.holds.get(&thread) else {
            // Lost or released in the meantime; the guard knows which.
            return Ok(());
        };
        let name = hold.name.clone();
        let lost = |reason| Error::Lost(io.lost(hold, reason));
        let failure = match answer.result {
            Ok(Reply::Renewed(results)) => match results.into_iter().next() {
                Some(Renewal::Renewed) => {
                    hold.shared.raise_deadline(lease.deadline(answer.handed));
                    return Ok(());
                }
                Some(Renewal::Failed(refusal)) => Failure::Refused(refusal),
                _ => {
                    let error = lost(LostReason::Gone);
                    self.lose(io, thread, LostReason::Gone);
                    return Err(error);
                }
            },
            Ok(other) => return Err(io.nonsense(&name, &other)),
            Err(failure) => failure,
        };
        if let Failure::Refused(refusal) = &failure
            && refusal.kind == RefusalKind::WrongType
        {
            self.lose(io, thread, LostReason::WrongType);
        }
        Err(io.error(&name, &failure))
    }
}
