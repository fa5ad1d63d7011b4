//! The end of a client: waiters are told, holds are released, what is unconfirmed is listed.

use super::state::{Phase, State};
use super::{Io, Tag};
use crate::error::{Error, HoldEnd, LostReason};
use crate::wire::{Op, ThreadId};

impl State {
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

    /// Nobody works on what is left any more: whoever waits for it is told.
    pub(super) fn give_up(&mut self) {
        for (_, mut hold) in std::mem::take(&mut self.holds) {
            let result = Err(Error::Closed { lock: hold.name.given().into() });
            let mut waiters = std::mem::take(&mut hold.leavers);
            if let Phase::Releasing(releasing) = hold.phase {
                waiters.extend(releasing.waiters);
            }
            self.unlocked(waiters, &result);
        }
    }

    /// Whether a release is under way.
    pub(super) fn is_releasing(&self) -> bool {
        self.holds.values().any(|hold| !matches!(hold.phase, Phase::Held | Phase::Asked { call: Some(_), .. }))
    }

    /// Locks whose release is still not confirmed.
    pub(super) fn unreleased(&self) -> Vec<Box<str>> {
        self.holds.values().map(|hold| hold.name.given().into()).collect()
    }
}
