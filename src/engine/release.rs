//! From a hold to a free key: leaving, the final release and its retries, and acquires of doubtful fate.

use std::sync::Arc;

use super::state::{Phase, Releasing, State, Timer, UnlockSender};
use super::{Io, Tag};
use crate::clock::Moment;
use crate::error::{Error, HoldEnd, LostReason, NotHeld};
use crate::names::LockName;
use crate::owner::Owner;
use crate::wire::{Answer, Failure, Op, RefusalKind, Reply, ThreadId};

impl State {
    /// One live hold ends: a guard was dropped or unlocked, a grant was not wanted.
    pub(super) fn leave(&mut self, io: &Io, thread: ThreadId, watched: bool, waiter: Option<UnlockSender>) {
        let Some(hold) = self.holds.get_mut(&thread) else {
            // The caller looks at the end first; a hold that is gone by now was lost in between, or shut down.
            return;
        };
        if !matches!(hold.phase, Phase::Held) {
            return;
        }
        if hold.shared.lost().is_some() {
            hold.leavers.extend(waiter);
            return self.lose(io, thread, LostReason::Expired);
        }
        hold.guards -= 1;
        if watched {
            hold.watched -= 1;
            if hold.watched == 0 {
                hold.renew.at = None;
            }
        }
        if hold.live() == 0 {
            self.free(io, thread, waiter, false);
        } else {
            hold.leavers.extend(waiter);
            self.settle(io, thread);
        }
    }

    /// `RLock::unlock`: releases a forgotten hold of `owner`.
    pub(super) fn unlock_forgotten(&mut self, io: &Io, name: &Arc<LockName>, owner: Owner, waiter: UnlockSender) {
        let lock = || name.given().into();
        let error = match self.held_by(name, owner) {
            Some(thread) => {
                let hold = self.holds.get_mut(&thread).expect("held_by looked it up");
                if let Some(watched) = hold.forgotten.pop() {
                    return self.leave(io, thread, watched, Some(waiter));
                }
                Error::HeldByGuard { lock: lock(), owner }
            }
            None => {
                if self.closed {
                    return self.unlocked(vec![waiter], &Err(Error::Closed { lock: lock() }));
                }
                let why = match self.departed.take(owner, name) {
                    Some(_) => NotHeld::Expired,
                    None => NotHeld::Never,
                };
                Error::NotHeld { lock: lock(), owner, why }
            }
        };
        self.unlocked(vec![waiter], &Err(error));
    }

    /// The last hold of a field ends: the release goes out before this returns, and the next local waiter's attempt
    /// right behind it.
    pub(super) fn free(&mut self, io: &Io, thread: ThreadId, waiter: Option<UnlockSender>, silent: bool) {
        let now = Moment::now();
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let mut waiters = std::mem::take(&mut hold.leavers);
        // The final release answers for a partial one that is still in flight.
        waiters.extend(hold.settling.as_mut().map(|s| std::mem::take(&mut s.leavers)).into_iter().flatten());
        waiters.extend(waiter);
        hold.phase =
            Phase::Releasing(Releasing { waiters, started: now, tries: 1, in_flight: true, retry_at: now, silent });
        if !silent {
            hold.shared.set_end(HoldEnd::Released);
        }
        let name = hold.name.clone();
        io.push(Op::Release { name: name.clone(), thread, remaining: 0 }, Tag::Free(thread));
        if let Some(key) = self.keys.get_mut(&name)
            && key.active == Some(thread)
        {
            key.active = None;
            self.hand_on(io, &name);
        }
    }

    pub(super) fn answered_free(&mut self, io: &Io, thread: ThreadId, answer: Answer) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let releasing = match &mut hold.phase {
            Phase::Releasing(releasing) => releasing,
            Phase::Asked { released_behind, .. } => {
                // Before the acquire it was sent behind: that one will have to be released once more.
                *released_behind = false;
                return;
            }
            Phase::Doubtful(_) => return self.answered_doubt(io, thread, answer),
            Phase::Held => return,
        };
        releasing.in_flight = false;
        let now = Moment::now();
        let name = hold.name.clone();
        let result = match answer.result {
            Ok(Reply::Released { receivers }) => {
                if receivers.is_none() {
                    io.warn_deaf(&name);
                }
                tracing::debug!(lock = %name, owner = %hold.owner, thread = thread.0, "released");
                self.released(io, &name, receivers);
                Ok(())
            }
            // Sent before: whichever of them was executed, it was in time.
            Ok(Reply::NotHolder { .. }) if releasing.tries > 1 || releasing.silent => Ok(()),
            Ok(Reply::NotHolder { by }) => {
                let why = by.map_or(NotHeld::Expired, NotHeld::TakenBy);
                Err(Error::NotHeld { lock: name.given().into(), owner: hold.owner, why })
            }
            Err(Failure::Refused(refusal)) if refusal.kind == RefusalKind::WrongType => {
                Err(Error::WrongType { lock: name.given().into() })
            }
            Ok(other) => return self.release_failed(io, thread, io.nonsense(&name, &other), true, now),
            Err(failure) => {
                let told_now = matches!(&failure, Failure::Refused(r) if !r.kind.is_passing());
                return self.release_failed(io, thread, io.error(&name, &failure), told_now, now);
            }
        };
        let Some(hold) = self.holds.remove(&thread) else { return };
        if let Phase::Releasing(releasing) = hold.phase {
            self.unlocked(releasing.waiters, &result);
        }
        self.after_release(io, &name);
    }

    /// A release without effect or of unknown fate is tried again until the hold's deadline, on the keeper's connection.
    fn release_failed(&mut self, io: &Io, thread: ThreadId, error: Error, tell_now: bool, now: Moment) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let deadline = hold.shared.deadline();
        let unconfirmed = io.unconfirmed(hold, &error);
        let Phase::Releasing(releasing) = &mut hold.phase else { return };
        let over = now >= deadline;
        let patient = releasing.tries < 2 || releasing.started.until(now) < io.config.command_timeout;
        let tell = over || tell_now || !patient;
        let waiters = if tell { std::mem::take(&mut releasing.waiters) } else { Vec::new() };
        releasing.retry_at = now.after(io.backoff(releasing.tries));
        let retry_at = releasing.retry_at;
        let name = hold.name.clone();
        let told = if tell_now && !over { error } else { unconfirmed };
        self.unlocked(waiters, &Err(told));
        if over {
            self.holds.remove(&thread);
            self.after_release(io, &name);
        } else {
            self.look_at_hold_at(io, thread, retry_at);
        }
    }

    /// Sends a release again that is due for it.
    pub(super) fn retry_release(&mut self, io: &Io, thread: ThreadId, now: Moment) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let Phase::Releasing(releasing) = &mut hold.phase else { return };
        if releasing.in_flight {
            return;
        }
        if now >= releasing.retry_at {
            releasing.in_flight = true;
            releasing.tries += 1;
            let op = Op::Release { name: hold.name.clone(), thread, remaining: 0 };
            io.push_own(op, Tag::Free(thread));
        } else {
            let at = releasing.retry_at;
            self.look_at_hold_at(io, thread, at);
        }
    }

    /// Nothing more will be heard of this field.
    pub(super) fn after_release(&mut self, io: &Io, name: &Arc<LockName>) {
        if !self.is_releasing() {
            io.drained.notify_all();
            io.drained_async.notify_waiters();
        }
        if let Some(key) = self.keys.get_mut(name)
            && key.giving_way
            && key.try_at.is_none()
        {
            key.try_at = Some(Moment::now().after(super::GRACE));
            let at = key.try_at.expect("set above");
            self.timers.add(io, at, Timer::Key(name.clone()));
        } else {
            self.pump(io, name);
        }
        self.tidy(io, name);
    }
}
