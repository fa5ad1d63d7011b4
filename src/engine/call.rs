//! One call of `lock`, `try_lock` or `try_lock_for`, as the engine and the caller's future share it.
//!
//! The slot is the only meeting place: the engine puts the outcome in, the future takes it out. Who wins when both come at
//! once (a grant and a drop, a grant and its recall) is decided by who has the slot's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::hold::HoldShared;
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::Lease;
use crate::names::LockName;
use crate::owner::Owner;
use crate::wire::ThreadId;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) name: Arc<LockName>,
    pub(crate) owner: Owner,
    pub(crate) patience: Patience,
    pub(crate) lease: Lease,
    /// No lease was given: the watchdog renews it.
    pub(crate) watched: bool,
    pub(crate) max_hold: Option<Duration>,
}

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One attempt.
    Once,
    /// Until this moment; [`Moment::FAR`] is for ever.
    Until(Moment),
}

/// A hold handed over; becomes a guard.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) thread: ThreadId,
    pub(crate) hold: Arc<HoldShared>,
    pub(crate) watched: bool,
}

pub(crate) type Outcome = Result<Option<Grant>, Error>;

#[derive(Debug)]
enum Slot {
    Waiting(Option<Waker>),
    Ready(Outcome),
    /// A grant lay here for too long and was taken back.
    Recalled,
    Done,
}

/// What the future finds in the slot.
pub(crate) enum Found {
    Outcome(Outcome),
    Recalled,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) started: Moment,
    /// The thread id of the hold that this call asks for or joins; 0 while there is none.
    thread: AtomicU64,
    /// Until when a grant may lie in the slot; 0 while there is none.
    recall_at: AtomicU64,
    slot: Mutex<Slot>,
}

impl Call {
    pub(crate) fn new(request: Request, started: Moment) -> Arc<Self> {
        Arc::new(Call {
            request,
            started,
            thread: AtomicU64::new(0),
            recall_at: AtomicU64::new(0),
            slot: Mutex::new(Slot::Waiting(None)),
        })
    }

    pub(crate) fn thread(&self) -> Option<ThreadId> {
        match self.thread.load(Ordering::Relaxed) {
            0 => None,
            n => Some(ThreadId(n)),
        }
    }

    pub(crate) fn set_thread(&self, thread: Option<ThreadId>) {
        self.thread.store(thread.map_or(0, |t| t.0), Ordering::Relaxed);
    }

    pub(crate) fn is_once(&self) -> bool {
        self.request.patience == Patience::Once
    }

    /// The end of its wait, if it has one.
    pub(crate) fn end(&self) -> Option<Moment> {
        match self.request.patience {
            Patience::Until(end) if end != Moment::FAR => Some(end),
            _ => None,
        }
    }

    pub(crate) fn set_recall(&self, at: Moment) {
        self.recall_at.store(at.to_bits(), Ordering::Relaxed);
    }

    /// Until when a grant may lie here, if there is one.
    pub(crate) fn recall_at(&self) -> Option<Moment> {
        match self.recall_at.load(Ordering::Relaxed) {
            0 => None,
            bits => Some(Moment::from_bits(bits)),
        }
    }

    /// Whether somebody still waits for an outcome.
    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.slot.lock(), Slot::Waiting(_))
    }

    /// Puts the outcome in. Whom to wake; `Err` gives it back when nobody waits for it any more.
    pub(crate) fn finish(&self, outcome: Outcome) -> Result<Option<Waker>, Outcome> {
        let mut slot = self.slot.lock();
        match &mut *slot {
            Slot::Waiting(waker) => {
                let waker = waker.take();
                *slot = Slot::Ready(outcome);
                Ok(waker)
            }
            _ => Err(outcome),
        }
    }

    /// Takes back a grant that was not picked up.
    pub(crate) fn recall(&self) -> Option<Grant> {
        let mut slot = self.slot.lock();
        match &*slot {
            Slot::Ready(Ok(Some(grant))) => {
                let grant = grant.clone();
                *slot = Slot::Recalled;
                Some(grant)
            }
            _ => None,
        }
    }

    /// Begins anew after a recall.
    pub(crate) fn reopen(&self) {
        self.set_thread(None);
        self.recall_at.store(0, Ordering::Relaxed);
        *self.slot.lock() = Slot::Waiting(None);
    }

    /// The future is gone: a grant that lay ready is returned, and none comes any more.
    pub(crate) fn abandon(&self) -> Option<Grant> {
        match std::mem::replace(&mut *self.slot.lock(), Slot::Done) {
            Slot::Ready(Ok(grant)) => grant,
            _ => None,
        }
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Found> {
        let mut slot = self.slot.lock();
        match std::mem::replace(&mut *slot, Slot::Done) {
            Slot::Waiting(old) => {
                let waker = match old {
                    Some(old) if old.will_wake(cx.waker()) => old,
                    _ => cx.waker().clone(),
                };
                *slot = Slot::Waiting(Some(waker));
                Poll::Pending
            }
            Slot::Ready(outcome) => Poll::Ready(Found::Outcome(outcome)),
            Slot::Recalled => Poll::Ready(Found::Recalled),
            Slot::Done => panic!("polled after completion"),
        }
    }
}
