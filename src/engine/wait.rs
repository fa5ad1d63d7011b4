//! Waiting: one contender per key at the server, everybody else of this process in a queue behind it, in order of arrival.
//!
//! Reasons for the contender to try: it is new; the subscription was confirmed; a message came; a release of this process
//! went out; the TTL that it was told has passed; the re-check interval has passed; the connection is back. Each is a
//! moment in `try_at`; [`State::pump`] is the only place that acts on it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::call::Call;
use super::state::{Hearing, State, Timer};
use super::{Io, Tag};
use crate::clock::Moment;
use crate::error::Error;
use crate::names::LockName;
use crate::wire::Op;

/// How often a waiter looks that cannot hear.
const DEAF_RECHECK: Duration = Duration::from_millis(250);

/// Grants in a row that this process takes while others listen, before it gives way once.
const STREAK: u32 = 16;

impl State {
    /// Sends the head's attempt if it is due and nothing stands against it.
    pub(super) fn pump(&mut self, io: &Io, name: &Arc<LockName>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        if key.asking.is_some() || key.active.is_some() {
            return;
        }
        let Some(head) = key.queue.front().cloned() else { return };
        let Some(at) = key.try_at else { return };
        if at > Moment::now() {
            return;
        }
        if key.foreign && key.streak >= STREAK && !key.giving_way {
            key.giving_way = true;
            let at = Moment::now().after(super::GRACE);
            key.try_at = Some(at);
            return self.timers.add(io, at, Timer::Key(name.clone()));
        }
        if std::mem::take(&mut key.giving_way) {
            key.streak = 0;
        }
        key.try_at = None;
        key.again = false;
        let thread = self.ask(io, &head);
        if let Some(key) = self.keys.get_mut(name) {
            key.asking = Some(thread);
        }
    }

    /// A reason to try at once.
    pub(super) fn nudge(&mut self, io: &Io, name: &Arc<LockName>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        if key.asking.is_some() {
            key.again = true;
        } else if !key.giving_way && !key.queue.is_empty() {
            key.try_at = Some(Moment::now());
            self.pump(io, name);
        }
    }

    /// The contender was told that somebody else holds the lock.
    pub(super) fn found_held(&mut self, io: &Io, name: &Arc<LockName>, ttl: Option<Duration>) {
        let now = Moment::now();
        let Some(key) = self.keys.get_mut(name) else { return };
        if key.queue.front().is_some_and(|head| key.held_seen.is_none_or(|seen| seen < head.started)) {
            io.stats.contended.fetch_add(1, Relaxed);
        }
        key.failures = 0;
        key.held_seen = Some(now);
        // Somebody else had their turn.
        key.streak = 0;
        key.giving_way = false;
        if key.hearing == Hearing::None {
            key.hearing = Hearing::Wanted;
            self.channels.insert(name.channel().into(), name.clone());
            io.want(name);
        }
        let recheck = match key.hearing {
            Hearing::Confirmed => io.config.recheck_interval,
            _ => io.config.recheck_interval.min(DEAF_RECHECK),
        };
        let sleep = match ttl {
            _ if std::mem::take(&mut key.again) => Duration::ZERO,
            // The key is there until the end of that millisecond.
            Some(ttl) => recheck.min(ttl.saturating_add(Duration::from_millis(1))),
            None => recheck,
        };
        self.sleep(io, name, now.after(sleep));
    }

    fn sleep(&mut self, io: &Io, name: &Arc<LockName>, until: Moment) {
        if let Some(key) = self.keys.get_mut(name) {
            key.try_at = Some(until);
        }
        self.timers.add(io, until, Timer::Key(name.clone()));
        self.pump(io, name);
    }

    /// An attempt of a waiting call failed: goes on while it may, else tells the call.
    pub(super) fn wait_failed(&mut self, io: &Io, name: &Arc<LockName>, call: &Arc<Call>, error: Error, passing: bool) {
        let now = Moment::now();
        let Some(key) = self.keys.get_mut(name) else { return };
        key.failures += 1;
        let failures = key.failures;
        if !passing {
            self.leave_queue(call);
            self.fail(call, error);
            if let Some(key) = self.keys.get_mut(name) {
                key.failures = 0;
                key.try_at = Some(now);
            }
            self.pump(io, name);
            return self.tidy(io, name);
        }
        if let Some(outage) = io.config.outage_timeout {
            let heard = key.replied;
            let gone: Vec<_> = key
                .queue
                .iter()
                .filter(|c| c.end().is_none())
                .filter(|c| heard.map_or(c.started, |h| h.max(c.started)).until(now) >= outage)
                .cloned()
                .collect();
            for call in gone {
                self.leave_queue(&call);
                let waited = call.started.until(now);
                self.fail(&call, Error::Timeout { lock: name.given().into(), waited });
            }
        }
        self.sleep(io, name, now.after(io.backoff(failures)));
        self.tidy(io, name);
    }

    /// Removes a call from the queue; whether it was there.
    pub(super) fn leave_queue(&mut self, call: &Arc<Call>) -> bool {
        let Some(key) = self.keys.get_mut(&call.request.name) else { return false };
        match key.queue.iter().position(|c| Arc::ptr_eq(c, call)) {
            Some(at) => {
                key.queue.remove(at);
                true
            }
            None => false,
        }
    }

    /// The end of a call's wait: whether the lock was seen held, or nothing was seen at all.
    pub(super) fn expire(&mut self, io: &Io, call: &Arc<Call>) {
        let now = Moment::now();
        let key = self.keys.get(&call.request.name);
        let held = key.is_some_and(|k| k.active.is_some() || k.held_seen.is_some_and(|seen| seen >= call.started));
        let outcome = if held {
            Ok(None)
        } else {
            Err(Error::Timeout { lock: call.request.name.given().into(), waited: call.started.until(now) })
        };
        if self.finish(call, outcome).is_ok() {
            self.withdraw(io, call);
        }
    }

    /// A final release of this process went out: the next one's attempt goes right behind it, unless it is others' turn.
    pub(super) fn hand_on(&mut self, io: &Io, name: &Arc<LockName>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        if key.hearing == Hearing::Confirmed {
            key.echoes += 1;
        }
        if key.asking.is_some() {
            // It may have been executed before the release: the answer is not to be slept on.
            key.again = true;
        } else if key.foreign && key.streak >= STREAK {
            // Until the release is answered, and a grace longer.
            key.giving_way = true;
            key.try_at = None;
            return;
        } else if !key.queue.is_empty() {
            key.try_at = Some(Moment::now());
        }
        self.pump(io, name);
    }

    /// What a release's answer says about others.
    pub(super) fn released(&mut self, _io: &Io, name: &Arc<LockName>, receivers: Option<u64>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        let ours = u64::from(key.hearing == Hearing::Confirmed);
        let receivers = receivers.unwrap_or(0);
        key.foreign = receivers > ours;
        if receivers < ours {
            key.echoes = key.echoes.saturating_sub(1);
        }
        if !key.foreign {
            key.streak = 0;
        }
    }

    /// A message on a channel.
    pub(super) fn heard(&mut self, io: &Io, channel: &str) {
        let Some(name) = self.channels.get(channel).cloned() else { return };
        let Some(key) = self.keys.get_mut(&name) else { return };
        let echo = key.echoes > 0;
        key.echoes = key.echoes.saturating_sub(1);
        match key.active {
            // Somebody else says that it is free while we hold it: forced, or the same name in another database.
            Some(thread) if !echo => io.push_own(Op::HoldCount { name: name.clone(), thread }, Tag::Check(thread)),
            Some(_) => {}
            None => self.nudge(io, &name),
        }
    }

    /// The subscription is there (again): whatever was told before may have been missed.
    pub(super) fn confirmed(&mut self, io: &Io, name: &Arc<LockName>) {
        let Some(key) = self.keys.get_mut(name) else { return io.unwant(name) };
        key.hearing = Hearing::Confirmed;
        key.echoes = 0;
        self.nudge(io, name);
    }

    pub(super) fn refused(&mut self, io: &Io, name: &Arc<LockName>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        key.hearing = Hearing::Deaf;
        self.nudge(io, name);
    }

    /// Everything may have been missed: every key looks again, and every certain hold is checked.
    pub(super) fn look_everywhere(&mut self, io: &Io) {
        let names: Vec<_> = self.keys.keys().cloned().collect();
        for name in names {
            if let Some(key) = self.keys.get_mut(&name) {
                key.echoes = 0;
                if let (Hearing::Confirmed, Some(thread)) = (key.hearing, key.active) {
                    io.push_own(Op::HoldCount { name: name.clone(), thread }, Tag::Check(thread));
                }
            }
            self.nudge(io, &name);
        }
    }

    /// The connection is back: what failed is tried at once.
    pub(super) fn retry_failed(&mut self, io: &Io) {
        let names: Vec<_> = self.keys.iter().filter(|(_, k)| k.failures > 0).map(|(n, _)| n.clone()).collect();
        for name in names {
            self.nudge(io, &name);
        }
    }

    /// A call's timer: the end of its wait, or a grant that nobody picks up.
    pub(super) fn look_at_call(&mut self, io: &Io, call: &Arc<Call>, now: Moment) {
        if call.is_open() {
            if call.end().is_some_and(|end| end <= now) {
                self.expire(io, call);
            }
        } else if call.recall_at().is_some_and(|at| at <= now)
            && let Some(grant) = call.recall()
        {
            tracing::warn!(lock = %call.request.name, owner = %call.request.owner,
                "granted to a call that nobody polls: given back");
            self.leave(io, grant.thread, grant.watched, None);
        }
    }

    /// The end of a key's lingering, unless it was used in the meantime.
    pub(super) fn look_at_idle_key(&mut self, io: &Io, name: &Arc<LockName>, now: Moment) {
        let Some(key) = self.keys.get_mut(name) else { return };
        match key.linger_until {
            None => key.linger_timer = false,
            Some(until) if until > now => self.timers.add(io, until, Timer::Linger(name.clone())),
            Some(_) => {
                if key.hearing != Hearing::None {
                    self.channels.remove(name.channel());
                    io.unwant(name);
                }
                self.keys.remove(name);
            }
        }
    }

    /// A key's timer: an attempt that is due.
    pub(super) fn look_at_key(&mut self, io: &Io, name: &Arc<LockName>, now: Moment) {
        let Some(key) = self.keys.get_mut(name) else { return };
        if key.asking.is_none() && key.active.is_none() && key.try_at.is_some_and(|at| at <= now) {
            if key.hearing != Hearing::None && !key.giving_way && key.failures == 0 {
                io.stats.repolls.fetch_add(1, Relaxed);
            }
            self.pump(io, name);
        }
    }
}
