//! Acquires of doubtful fate: no answer came, so the field is released again and again until it is certainly gone.
//!
//! It is gone for certain when a release was answered that came behind the acquire on the only connection that can have
//! carried it, older ones having been killed; or when a lease has passed since.

use super::state::{Doubt, Phase, State};
use super::{Io, Tag};
use crate::clock::Moment;
use crate::wire::{Answer, Failure, Op, RefusalKind, Reply, ThreadId};

impl State {
    /// Starts the list of releases for an acquire of which nobody knows whether it was executed.
    pub(super) fn doubt(&mut self, io: &Io, thread: ThreadId, epochs: (u64, u64)) {
        let hold = self.holds.get_mut(&thread).expect("the caller looked it up");
        let now = Moment::now();
        tracing::debug!(lock = %hold.name, thread = thread.0, "an acquire without an answer: releasing it until it is gone");
        hold.phase = Phase::Doubtful(Doubt {
            since: now,
            clean_from: epochs.0,
            last: epochs.1,
            kills: 0,
            killed_to: epochs.0,
            kill_failed: false,
            unkillable: false,
            in_flight: false,
            tries: 0,
            retry_at: now,
        });
        self.look_at_hold_at(io, thread, now);
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
                let to = current.min(doubt.last + 1);
                for epoch in doubt.clean_from..to {
                    match io.main_connection(epoch) {
                        Some(id) => {
                            doubt.kills += 1;
                            io.push_own(Op::KillConnection { id }, Tag::Kill(thread));
                        }
                        None => doubt.unkillable = true,
                    }
                }
                doubt.killed_to = to;
                if doubt.kills > 0 {
                    return;
                }
                doubt.clean_from = to;
            }
            _ => doubt.unkillable = true,
        }
        self.release_doubt(io, thread);
    }

    fn release_doubt(&mut self, io: &Io, thread: ThreadId) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let Phase::Doubtful(doubt) = &mut hold.phase else { return };
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
        match &answer.result {
            Ok(Reply::Killed) => {}
            // The keeper's connection broke: to be killed once more with the next try.
            Err(Failure::NotSent(_) | Failure::Unknown(_)) => doubt.kill_failed = true,
            _ => doubt.unkillable = true,
        }
        if doubt.kills > 0 {
            return;
        }
        if !std::mem::take(&mut doubt.kill_failed) {
            doubt.clean_from = doubt.killed_to;
        }
        self.release_doubt(io, thread);
    }

    pub(super) fn answered_doubt(&mut self, io: &Io, thread: ThreadId, answer: Answer) {
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
        // Every connection that can have carried the acquire is dead, or this came behind it on the one that is left; or it
        // is so late that it can only have run out.
        let all_dead = doubt.clean_from > doubt.last;
        let behind = doubt.tries % 2 == 1
            && answer.first_epoch == doubt.clean_from
            && answer.last_epoch == doubt.clean_from
            && io.main_epoch() == Some(doubt.clean_from);
        let ordered = !doubt.unkillable && (all_dead || behind);
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
}
