//! From a call to a hold: the first attempt, the answer, re-entry, and what happens when the caller goes away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::call::{Call, Grant};
use super::hold::HoldShared;
use super::state::{Hold, Phase, Releasing, Renew, State, Timer};
use super::{Io, Tag};
use crate::clock::Moment;
use crate::error::{Error, HoldEnd, LostReason};
use crate::names::LockName;
use crate::wire::{Answer, Failure, Op, Reply, ThreadId};

impl State {
    /// A call begins, or begins anew.
    pub(super) fn begin(&mut self, io: &Io, call: &Arc<Call>) {
        let name = &call.request.name;
        if self.closed {
            return self.fail(call, Error::Closed { lock: name.given().into() });
        }
        if let Some(thread) = self.held_by(name, call.request.owner) {
            return self.join(io, thread, call);
        }
        if call.is_once() {
            self.ask(io, call);
            return;
        }
        let key = self.keys.entry(name.clone()).or_default();
        key.queue.push_back(call.clone());
        key.linger_until = None;
        if key.queue.len() == 1 && !key.giving_way {
            key.try_at = Some(call.started);
        }
        if let Some(end) = call.end() {
            self.timers.add(io, end, Timer::Wait(Arc::downgrade(call)));
        }
        self.pump(io, name);
    }

    /// Sends an acquire under a fresh holder field.
    pub(super) fn ask(&mut self, io: &Io, call: &Arc<Call>) -> ThreadId {
        let request = &call.request;
        let thread = io.next_thread();
        call.set_thread(Some(thread));
        self.holds.insert(
            thread,
            Hold {
                name: request.name.clone(),
                owner: request.owner,
                shared: HoldShared::new(),
                phase: Phase::Asked { call: Some(call.clone()), released_behind: false },
                lease: request.lease,
                guards: 0,
                watched: 0,
                forgotten: Vec::new(),
                server_count: None,
                settling: None,
                joiners: Vec::new(),
                leavers: Vec::new(),
                settle_failures: 0,
                renew: Renew::default(),
                look_at: None,
                token: None,
            },
        );
        // The keeper is awake while an answer is awaited: the runtime that should bring it may not be driven.
        let soon = Moment::now().after(super::keeper::TICK);
        if self.timers.next_wake.is_none_or(|next| next > soon) {
            self.timers.add(io, soon, Timer::Alarm);
        }
        let op = Op::Acquire { name: request.name.clone(), thread, count: 1, lease: request.lease };
        let token = io.push(op, Tag::Ask(thread));
        self.holds.get_mut(&thread).expect("inserted above").token = token;
        thread
    }

    pub(super) fn answered_ask(&mut self, io: &Io, thread: ThreadId, answer: Answer) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let Phase::Asked { call, released_behind } = &mut hold.phase else { return };
        let (call, released_behind) = (call.take(), *released_behind);
        let name = hold.name.clone();
        let now = Moment::now();
        if let Some(key) = self.keys.get_mut(&name) {
            if key.asking == Some(thread) {
                key.asking = None;
            }
            if !matches!(answer.result, Err(Failure::NotSent(_) | Failure::Unknown(_))) {
                key.replied = Some(now);
            }
        }
        let epochs = (answer.first_epoch, answer.last_epoch);
        match answer.result {
            Ok(Reply::Acquired) => {
                let hold = self.holds.get_mut(&thread).expect("looked up above");
                let deadline = hold.lease.deadline(answer.handed);
                hold.shared.raise_deadline(deadline);
                hold.server_count = Some(1);
                match call {
                    Some(call) if now < deadline => self.grant(io, thread, &call),
                    Some(call) => {
                        let request = &call.request;
                        let error = Error::ExpiredBeforeUse {
                            lock: name.given().into(),
                            owner: request.owner,
                            lease: request.lease.as_duration(),
                        };
                        self.leave_queue(&call);
                        self.fail(&call, error);
                        self.free(io, thread, None, true);
                        // The next one's attempt goes behind that release.
                        self.nudge(io, &name);
                        self.tidy(io, &name);
                    }
                    // The release behind it is still under way, or has come too early (a script that had to be loaded).
                    None if released_behind => {
                        let hold = self.holds.get_mut(&thread).expect("looked up above");
                        hold.phase = Phase::Releasing(Releasing::silent(now));
                    }
                    None => self.free(io, thread, None, true),
                }
            }
            Ok(Reply::Held { ttl }) => {
                self.holds.remove(&thread);
                let Some(call) = call else { return self.asked_in_vain(io, &name) };
                call.set_thread(None);
                if call.is_once() {
                    match self.held_by(&name, call.request.owner) {
                        Some(own) => self.join(io, own, &call),
                        None => {
                            let _ = self.finish(&call, Ok(None));
                        }
                    }
                    self.tidy(io, &name);
                } else {
                    self.found_held(io, &name, ttl);
                }
            }
            Ok(other) => {
                // Not a reply to this question: treat the attempt as one whose fate is not known.
                self.doubt(io, thread, epochs);
                let error = io.nonsense(&name, &other);
                self.attempt_failed(io, &name, call, error, false);
            }
            Err(failure) => {
                if let Failure::Unknown(_) = &failure {
                    self.doubt(io, thread, epochs);
                } else {
                    self.holds.remove(&thread);
                }
                let passing = io.is_passing(&failure);
                let error = io.error(&name, &failure);
                self.attempt_failed(io, &name, call, error, passing);
            }
        }
    }

    fn asked_in_vain(&mut self, io: &Io, name: &Arc<LockName>) {
        self.nudge(io, name);
        self.tidy(io, name);
    }

    fn attempt_failed(&mut self, io: &Io, name: &Arc<LockName>, call: Option<Arc<Call>>, error: Error, passing: bool) {
        let Some(call) = call else { return self.asked_in_vain(io, name) };
        call.set_thread(None);
        if call.is_once() {
            self.fail(&call, error);
            self.tidy(io, name);
        } else {
            self.wait_failed(io, name, &call, error, passing);
        }
    }

    /// The server granted `thread`: hands it to its call.
    fn grant(&mut self, io: &Io, thread: ThreadId, call: &Arc<Call>) {
        let now = Moment::now();
        let request = &call.request;
        let name = request.name.clone();
        self.leave_queue(call);
        let key = self.keys.entry(name.clone()).or_default();
        // The lock is exclusive: if the server grants it, an older hold of ours is gone.
        if let Some(old) = key.active.take() {
            self.lose(io, old, LostReason::Gone);
        }
        let key = self.keys.entry(name.clone()).or_default();
        key.active = Some(thread);
        key.failures = 0;
        key.try_at = None;
        key.again = false;
        key.giving_way = false;
        key.linger_until = None;
        if !key.queue.is_empty() {
            key.held_seen = Some(now);
        }
        if key.foreign {
            key.streak += 1;
        }
        // The owner's other calls need not wait for themselves.
        let (own, others): (VecDeque<_>, _) =
            std::mem::take(&mut key.queue).into_iter().partition(|c| c.request.owner == request.owner);
        key.queue = others;
        let hold = self.holds.get_mut(&thread).expect("granted holds are there");
        hold.phase = Phase::Held;
        hold.guards = 1;
        hold.watched = u32::from(request.watched);
        if request.watched {
            hold.renew.until = request.max_hold.map(|max| now.after(max));
            hold.renew.at = Some(io.renewal_due(now, hold.lease));
        }
        let recall_at = now.after(io.config.undelivered_grant.min(hold.lease.as_duration() / 3));
        let grant = Grant { thread, hold: hold.shared.clone(), watched: request.watched };
        let next = hold.next_look();
        call.set_recall(recall_at);
        let waited = call.started.until(now);
        tracing::debug!(lock = %name, owner = %request.owner, thread = thread.0, ?waited, "acquired");
        io.stats.acquired.fetch_add(1, Relaxed);
        self.look_at_hold_at(io, thread, next);
        self.timers.add(io, recall_at, Timer::Wait(Arc::downgrade(call)));
        if self.finish(call, Ok(Some(grant))).is_err() {
            self.leave(io, thread, request.watched, None);
        }
        for joiner in own {
            self.leave_attempt(io, &joiner);
            self.join(io, thread, &joiner);
        }
    }

    /// The hold is lost: tells its guards, sends its nested calls to the queue, and lets the next one try.
    pub(super) fn lose(&mut self, io: &Io, thread: ThreadId, reason: LostReason) {
        let Some(hold) = self.holds.remove(&thread) else { return };
        // A server that no longer knows a hold past its deadline let it run out.
        let reason = hold.shared.lost().filter(|_| reason == LostReason::Gone).unwrap_or(reason);
        let error = io.lost(&hold, reason);
        // Counted before it is told: who was told finds it counted.
        io.stats.lost.fetch_add(1, Relaxed);
        hold.shared.set_end(HoldEnd::Lost(reason));
        tracing::warn!(lock = %hold.name, owner = %hold.owner, thread = thread.0, %reason, "lost");
        if !hold.forgotten.is_empty() {
            self.departed.add(hold.owner, hold.name.clone(), HoldEnd::Lost(reason));
        }
        let mut leavers = hold.leavers;
        let mut joiners = hold.joiners;
        if let Some(settling) = hold.settling {
            leavers.extend(settling.leavers);
            joiners.extend(settling.joiners);
        }
        self.unlocked(leavers, &Err(Error::Lost(error)));
        if let Some(key) = self.keys.get_mut(&hold.name)
            && key.active == Some(thread)
        {
            key.active = None;
        }
        for call in joiners {
            call.set_thread(None);
            self.begin(io, &call);
        }
        self.nudge(io, &hold.name);
        self.tidy(io, &hold.name);
    }

    /// The caller's future is gone, or its wait is over. Nothing may stay behind.
    pub(super) fn withdraw(&mut self, io: &Io, call: &Arc<Call>) {
        let name = &call.request.name;
        let thread = call.thread();
        let was_queued = self.leave_queue(call);
        let asked = self.leave_attempt(io, call);
        if let Some(thread) = thread.filter(|_| !asked)
            && let Some(hold) = self.holds.get_mut(&thread)
        {
            hold.joiners.retain(|j| !Arc::ptr_eq(j, call));
            if let Some(settling) = &mut hold.settling {
                settling.joiners.retain(|j| !Arc::ptr_eq(j, call));
            }
            self.settle(io, thread);
        }
        if was_queued {
            self.pump(io, name);
        }
        self.tidy(io, name);
    }

    /// Takes a call out of the attempt that was made for it; whether there was one.
    fn leave_attempt(&mut self, io: &Io, call: &Arc<Call>) -> bool {
        let Some(thread) = call.thread() else { return false };
        let Some(hold) = self.holds.get_mut(&thread) else { return false };
        let Phase::Asked { call: asked, .. } = &mut hold.phase else { return false };
        if !asked.as_ref().is_some_and(|asked| Arc::ptr_eq(asked, call)) {
            return false;
        }
        *asked = None;
        self.withdraw_attempt(io, thread);
        true
    }

    /// The attempt's call is gone: hands the attempt to the next waiter, or takes it back, or sends a release behind it.
    fn withdraw_attempt(&mut self, io: &Io, thread: ThreadId) {
        let hold = self.holds.get_mut(&thread).expect("the caller looked it up");
        let name = hold.name.clone();
        if let Some(key) = self.keys.get_mut(&name)
            && key.asking == Some(thread)
        {
            if let Some(next) = key.queue.front().filter(|next| next.request.lease == hold.lease) {
                next.set_thread(Some(thread));
                hold.owner = next.request.owner;
                hold.phase = Phase::Asked { call: Some(next.clone()), released_behind: false };
                return;
            }
            key.asking = None;
        }
        if io.take_back(hold.token) {
            self.holds.remove(&thread);
        } else {
            hold.phase = Phase::Asked { call: None, released_behind: true };
            io.push(Op::Release { name: name.clone(), thread, remaining: 0 }, Tag::Free(thread));
        }
        if let Some(key) = self.keys.get_mut(&name)
            && !key.queue.is_empty()
        {
            key.try_at = Some(Moment::now());
        }
        self.pump(io, &name);
    }
}
