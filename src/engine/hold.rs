//! What a guard, its listeners and the engine share of one hold: the deadline and the end. Exact without I/O.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::clock::Moment;
use crate::error::{HoldEnd, LostReason};

const HELD: u8 = 0;
const RELEASED: u8 = 1;

/// One per (key, holder field), shared by all nested guards.
#[derive(Debug)]
pub(crate) struct HoldShared {
    deadline: AtomicU64,
    end: AtomicU8,
    changed: Arc<Notify>,
}

impl HoldShared {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(HoldShared { deadline: AtomicU64::new(0), end: AtomicU8::new(HELD), changed: Arc::new(Notify::new()) })
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_bits(self.deadline.load(Ordering::Acquire))
    }

    /// A deadline only ever moves out.
    pub(crate) fn raise_deadline(&self, to: Moment) {
        self.deadline.fetch_max(to.to_bits(), Ordering::AcqRel);
    }

    /// How the hold ended, if it did. A deadline that has passed is an end even before anybody wrote it down.
    pub(crate) fn end(&self) -> Option<HoldEnd> {
        match decode(self.end.load(Ordering::Acquire)) {
            None if Moment::now() >= self.deadline() => Some(HoldEnd::Lost(LostReason::Expired)),
            end => end,
        }
    }

    /// How it was lost, if it was.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        match self.end() {
            Some(HoldEnd::Lost(reason)) => Some(reason),
            _ => None,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.end() {
            Some(_) => Duration::ZERO,
            None => Moment::now().until(self.deadline()),
        }
    }

    /// Writes the end down, once, and tells the listeners.
    pub(crate) fn set_end(&self, end: HoldEnd) {
        let _ = self.end.compare_exchange(HELD, encode(end), Ordering::AcqRel, Ordering::Acquire);
        self.changed.notify_waiters();
    }
}

fn encode(end: HoldEnd) -> u8 {
    match end {
        HoldEnd::Released => RELEASED,
        HoldEnd::Lost(LostReason::Expired) => 2,
        HoldEnd::Lost(LostReason::Gone) => 3,
        HoldEnd::Lost(LostReason::WrongType) => 4,
        HoldEnd::Lost(LostReason::Closed) => 5,
    }
}

fn decode(bits: u8) -> Option<HoldEnd> {
    Some(match bits {
        HELD => return None,
        RELEASED => HoldEnd::Released,
        2 => HoldEnd::Lost(LostReason::Expired),
        3 => HoldEnd::Lost(LostReason::Gone),
        4 => HoldEnd::Lost(LostReason::WrongType),
        _ => HoldEnd::Lost(LostReason::Closed),
    })
}

/// One guard's part in a hold: whether this guard was released while others of the hold live on.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) hold: Arc<HoldShared>,
    released: Arc<AtomicBool>,
}

impl Part {
    pub(crate) fn new(hold: Arc<HoldShared>) -> Self {
        Part { hold, released: Arc::new(AtomicBool::new(false)) }
    }

    /// From here on this guard counts as released. Tells its listeners.
    pub(crate) fn release(&self) {
        // A loss is not hidden by a release that comes after it.
        self.released.store(self.hold.lost().is_none(), Ordering::Release);
        self.hold.changed.notify_waiters();
    }

    pub(crate) fn end(&self) -> Option<HoldEnd> {
        if self.released.load(Ordering::Acquire) {
            return Some(HoldEnd::Released);
        }
        self.hold.end()
    }
}

/// Resolves when a guard's hold ends: [`HoldEnd::Released`] after an unlock or a drop of that guard,
/// [`HoldEnd::Lost`] no later than the hold's deadline when it was lost. Needs no network, may be cloned, sent and awaited
/// anywhere, and does not keep the guard or the client alive.
///
/// # Cancel safety
/// Dropping it has no effect on the hold.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Lost {
    part: Part,
    waiting: Option<Pin<Box<OwnedNotified>>>,
}

impl Lost {
    pub(crate) fn new(part: Part) -> Self {
        Lost { part, waiting: None }
    }
}

impl Clone for Lost {
    fn clone(&self) -> Self {
        Lost::new(self.part.clone())
    }
}

impl std::fmt::Debug for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lost").field("end", &self.part.end()).finish()
    }
}

impl Future for Lost {
    type Output = HoldEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<HoldEnd> {
        loop {
            let this = &mut *self;
            // Registered before the look, so that an end between the two is not missed.
            let waiting = this.waiting.get_or_insert_with(|| {
                let mut waiting = Box::pin(this.part.hold.changed.clone().notified_owned());
                waiting.as_mut().enable();
                waiting
            });
            if let Some(end) = this.part.end() {
                return Poll::Ready(end);
            }
            match waiting.as_mut().poll(cx) {
                Poll::Ready(()) => this.waiting = None,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
