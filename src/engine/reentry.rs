//! Nested holds: the server's count follows the number of live ones, one operation at a time, each setting the whole count.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::call::{Call, Grant};
use super::state::{Phase, Settling, State, Timer};
use super::{Io, Tag};
use crate::clock::Moment;
use crate::error::LostReason;
use crate::wire::{Answer, Failure, Op, RefusalKind, Renewal, Reply, ThreadId};

impl State {
    /// A nested call of the owner of `thread`.
    pub(super) fn join(&mut self, io: &Io, thread: ThreadId, call: &Arc<Call>) {
        call.set_thread(Some(thread));
        if let Some(end) = call.end() {
            self.timers.add(io, end, Timer::Wait(Arc::downgrade(call)));
        }
        self.holds.get_mut(&thread).expect("the caller looked it up").joiners.push(call.clone());
        self.settle(io, thread);
    }

    /// Brings the server's count to the number of live holds, one operation at a time.
    pub(super) fn settle(&mut self, io: &Io, thread: ThreadId) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        if hold.settling.is_some() || !matches!(hold.phase, Phase::Held) {
            return;
        }
        let count = hold.live();
        if count == 0 {
            return self.free(io, thread, None, false);
        }
        let joiners = std::mem::take(&mut hold.joiners);
        let leavers = std::mem::take(&mut hold.leavers);
        let name = hold.name.clone();
        let lease = joiners.iter().map(|j| j.request.lease).max();
        let op = match lease {
            Some(lease) if count > 1 => Op::Acquire { name, thread, count, lease },
            // Its outer holds went while this one came: the field is there already, and its count is seen to next.
            Some(lease) => Op::Renew { holds: vec![(name, thread)], lease },
            None if hold.server_count == Some(count) => return self.unlocked(leavers, &Ok(())),
            None => Op::Release { name, thread, remaining: count },
        };
        hold.settling = Some(Settling { count, lease: lease.unwrap_or(hold.lease), joiners, leavers });
        io.push_counted(op, Tag::Settle(thread), hold.settle_failures);
    }

    pub(super) fn answered_settle(&mut self, io: &Io, thread: ThreadId, answer: Answer) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        let Some(settling) = hold.settling.take() else { return };
        if !matches!(hold.phase, Phase::Held) {
            return;
        }
        // A renewal leaves the count as it is.
        let counted = !matches!(answer.result, Ok(Reply::Renewed(_)));
        let failure = match answer.result {
            Ok(Reply::Acquired) => None,
            Ok(Reply::Kept) => None,
            Ok(Reply::Renewed(r)) if r == [Renewal::Renewed] => None,
            Ok(Reply::Renewed(r)) => match r.into_iter().next() {
                Some(Renewal::Failed(refusal)) => Some(Failure::Refused(refusal)),
                _ => return self.lose_with(io, thread, LostReason::Gone, settling),
            },
            Ok(_) => return self.lose_with(io, thread, LostReason::Gone, settling),
            Err(failure) => Some(failure),
        };
        match failure {
            None => {
                if counted {
                    hold.server_count = Some(settling.count);
                }
                hold.settle_failures = 0;
                if !settling.joiners.is_empty() {
                    hold.shared.raise_deadline(settling.lease.deadline(answer.handed));
                }
                self.unlocked(settling.leavers, &Ok(()));
                for call in settling.joiners {
                    self.grant_nested(io, thread, &call);
                }
                self.settle(io, thread);
            }
            Some(Failure::Refused(refusal)) if refusal.kind == RefusalKind::WrongType => {
                self.lose_with(io, thread, LostReason::WrongType, settling);
            }
            Some(failure) => {
                // Whatever happened to it, the next one sets the whole count.
                if matches!(failure, Failure::Unknown(_)) {
                    hold.server_count = None;
                }
                hold.settle_failures += 1;
                let name = hold.name.clone();
                let error = io.error(&name, &failure);
                let passing = io.is_passing(&failure);
                let unconfirmed = io.unconfirmed(hold, &error);
                for call in settling.joiners {
                    if passing && !call.is_once() {
                        let hold = self.holds.get_mut(&thread).expect("looked up above");
                        hold.joiners.push(call);
                    } else {
                        self.fail(&call, error.clone());
                    }
                }
                self.unlocked(settling.leavers, &Err(unconfirmed));
                let at = Moment::now().after(io.backoff(self.holds[&thread].settle_failures));
                self.look_at_hold_at(io, thread, at);
            }
        }
    }

    fn grant_nested(&mut self, io: &Io, thread: ThreadId, call: &Arc<Call>) {
        let now = Moment::now();
        let request = &call.request;
        let hold = self.holds.get_mut(&thread).expect("its answer was just read");
        hold.guards += 1;
        if request.watched {
            hold.watched += 1;
            if hold.watched == 1 || hold.renew.at.is_none() {
                hold.renew.until = request.max_hold.map(|max| now.after(max));
                let due = io.renewal_due(now, io.watchdog_lease);
                hold.renew.at = Some(due);
                self.look_at_hold_at(io, thread, due);
            }
        }
        let hold = self.holds.get_mut(&thread).expect("its answer was just read");
        let grant = Grant { thread, hold: hold.shared.clone(), watched: request.watched };
        tracing::debug!(lock = %request.name, owner = %request.owner, thread = thread.0, "re-entered");
        io.stats.acquired.fetch_add(1, Relaxed);
        let recall_at = now.after(io.config.undelivered_grant);
        call.set_recall(recall_at);
        self.timers.add(io, recall_at, Timer::Wait(Arc::downgrade(call)));
        if self.finish(call, Ok(Some(grant))).is_err() {
            self.leave(io, thread, request.watched, None);
        }
    }

    /// A hold turned out to be gone while a count operation was under way.
    fn lose_with(&mut self, io: &Io, thread: ThreadId, reason: LostReason, settling: Settling) {
        let hold = self.holds.get_mut(&thread).expect("the caller looked it up");
        let mut joiners = settling.joiners;
        joiners.append(&mut hold.joiners);
        hold.joiners = joiners;
        let mut leavers = settling.leavers;
        leavers.append(&mut hold.leavers);
        hold.leavers = leavers;
        self.lose(io, thread, reason);
    }
}
