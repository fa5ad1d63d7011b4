//! From a hold to a free key: leaving, the final release and its retries, and acquires of doubtful fate.

use std::sync::Arc;

use super::state::{Hold, Phase, Releasing, State, Timer, UnlockSender};
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

    /// Works on an acquire of doubtful fate: ends the connection that may still carry it, then releases behind it.
    pub(super) fn clear_doubt(&mut self, io: &Io, thread: ThreadId, now: Moment) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let Phase::Doubtful(doubt) = &mut hold.phase else { return };
        if doubt.in_flight || doubt.kills > 0 {
            return;
        }
        if now < doubt.retry_at {
            let at = doubt.retry_at;
            return self.look_at_hold_at(io, thread, at);
        }
        match io.main_epoch() {
            Some(current) if !doubt.unkillable => {
                for epoch in doubt.clean_from..current {
                    match io.main_connection(epoch) {
                        Some(id) => {
                            doubt.kills += 1;
                            io.push_own(Op::KillConnection { id }, Tag::Kill(thread));
                        }
                        None => doubt.unkillable = true,
                    }
                }
                doubt.clean_from = current;
                if doubt.kills > 0 {
                    return;
                }
            }
            _ => doubt.unkillable = true,
        }
        doubt.in_flight = true;
        doubt.tries += 1;
        let op = Op::Release { name: hold.name.clone(), thread, remaining: 0 };
        // The first tries go the acquire's own way, so that they come behind it; if that way is shut, the keeper's.
        if doubt.tries % 2 == 1 {
            io.push(op, Tag::Free(thread));
        } else {
            io.push_own(op, Tag::Free(thread));
        }
    }

    pub(super) fn answered_kill(&mut self, io: &Io, thread: ThreadId, answer: &Answer) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let Phase::Doubtful(doubt) = &mut hold.phase else { return };
        doubt.kills = doubt.kills.saturating_sub(1);
        if !matches!(answer.result, Ok(Reply::Killed)) {
            doubt.unkillable = true;
        }
        self.clear_doubt(io, thread, Moment::now());
    }

    fn answered_doubt(&mut self, io: &Io, thread: ThreadId, answer: Answer) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let lease = hold.lease.as_duration();
        let name = hold.name.clone();
        let Phase::Doubtful(doubt) = &mut hold.phase else { return };
        doubt.in_flight = false;
        let now = Moment::now();
        let answered = match &answer.result {
            Ok(Reply::Released { .. }) => {
                tracing::debug!(lock = %name, thread = thread.0, "a doubtful acquire was released");
                true
            }
            Ok(Reply::NotHolder { .. }) => true,
            Err(Failure::Refused(refusal)) => refusal.kind == RefusalKind::WrongType,
            _ => false,
        };
        // Behind the acquire on the one connection that can have carried it, or so late that it can only have run out.
        let ordered = !doubt.unkillable
            && doubt.tries % 2 == 1
            && answer.first_epoch == doubt.clean_from
            && answer.last_epoch == doubt.clean_from
            && io.main_epoch() == Some(doubt.clean_from);
        if answered && (ordered || doubt.since.until(now) > lease) {
            self.holds.remove(&thread);
            self.after_release(io, &name);
            return self.nudge(io, &name);
        }
        doubt.retry_at = now.after(io.backoff(doubt.tries));
        let at = doubt.retry_at;
        if let Ok(Reply::Released { receivers }) = answer.result {
            self.released(io, &name, receivers);
            self.nudge(io, &name);
        }
        self.look_at_hold_at(io, thread, at);
    }

    /// Nothing more will be heard of this field.
    fn after_release(&mut self, io: &Io, name: &Arc<LockName>) {
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

    /// Gives up the watchdog's and the client's part in everything: `shutdown`, or the last handle is gone.
    pub(super) fn close(&mut self, io: &Io, keep_holds: bool) {
        if self.closed {
            return;
        }
        self.closed = true;
        let waiting: Vec<_> = self.keys.values_mut().flat_map(|key| std::mem::take(&mut key.queue)).collect();
        for call in waiting {
            let lock = call.request.name.given().into();
            let _ = self.finish(&call, Err(Error::Closed { lock }));
            self.withdraw(io, &call);
        }
        let threads: Vec<_> = self.holds.keys().copied().collect();
        for thread in threads {
            self.close_hold(io, thread, keep_holds);
        }
        if self.holds.is_empty() {
            io.drained.notify_all();
            io.drained_async.notify_waiters();
        }
    }

    fn close_hold(&mut self, io: &Io, thread: ThreadId, keep: bool) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let lock: Box<str> = hold.name.given().into();
        match &mut hold.phase {
            Phase::Asked { call, .. } => {
                if let Some(call) = call.take() {
                    let _ = self.finish(&call, Err(Error::Closed { lock }));
                    let hold = self.holds.get_mut(&thread).expect("looked up above");
                    hold.phase = Phase::Asked { call: Some(call.clone()), released_behind: false };
                    self.withdraw(io, &call);
                }
            }
            Phase::Held => {
                let calls: Vec<_> = hold.joiners.drain(..).collect();
                for call in calls {
                    self.fail(&call, Error::Closed { lock: lock.clone() });
                }
                let hold = self.holds.get_mut(&thread).expect("looked up above");
                hold.shared.set_end(HoldEnd::Lost(LostReason::Closed));
                if let Some(settling) = &mut hold.settling {
                    let calls = std::mem::take(&mut settling.joiners);
                    for call in calls {
                        self.fail(&call, Error::Closed { lock: lock.clone() });
                    }
                }
                if keep {
                    self.holds.remove(&thread);
                } else {
                    self.free(io, thread, None, false);
                }
            }
            Phase::Releasing(_) | Phase::Doubtful(_) => {}
        }
    }

    /// The caller's runtime may be gone or stand still: sends what was in flight there once more, the keeper's way.
    pub(super) fn resend_releases(&mut self, io: &Io) {
        for (thread, hold) in &mut self.holds {
            let wanted = match &mut hold.phase {
                Phase::Releasing(r) => {
                    r.tries += 1;
                    r.in_flight
                }
                Phase::Asked { call: None, .. } => true,
                _ => false,
            };
            if wanted {
                let op = Op::Release { name: hold.name.clone(), thread: *thread, remaining: 0 };
                io.push_own(op, Tag::Free(*thread));
            }
        }
    }

    /// Whether a release is under way.
    pub(super) fn is_releasing(&self) -> bool {
        self.holds.values().any(|hold| !matches!(hold.phase, Phase::Held | Phase::Asked { call: Some(_), .. }))
    }

    /// Locks whose release is still not confirmed.
    pub(super) fn unreleased(&self) -> Vec<Box<str>> {
        self.holds.values().map(|hold: &Hold| hold.name.given().into()).collect()
    }
}
