//! [`LockGuard`]: one hold, released when it goes.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::client::Handle;
use crate::engine::call::Grant;
use crate::engine::hold::{Lost, Part};
use crate::error::{Error, HoldEnd, LockLost, LostReason};
use crate::lease::Lease;
use crate::names::LockName;
use crate::owner::Owner;

/// A hold of a lock. Dropping it releases the hold in the background; [`unlock`](LockGuard::unlock) does so and tells how it
/// ended.
///
/// # Moved guards, and re-entry
/// The hold belongs to the [`Owner`] that took it, wherever the guard goes: it may be moved to another task or thread and
/// released there. The owner stays what it was, so **a loop that takes the lock and moves the guard into a spawned task
/// re-enters on its next turn** instead of waiting. [`detach`](LockGuard::detach) the guard first, or take it from a
/// [`non_reentrant`](crate::RLock::non_reentrant) handle:
/// ```no_run
/// # async fn f(lock: redisson_lock::RLock) -> Result<(), Box<dyn std::error::Error>> {
/// loop {
///     let guard = lock.lock().await?.detach()?;
///     tokio::spawn(async move {
///         // ... work ...
///         guard.unlock().await
///     });
/// }
/// # }
/// ```
///
/// # What it protects
/// [`is_lost`](LockGuard::is_lost) and [`remaining`](LockGuard::remaining) are exact and need no I/O. While the guard says
/// that it is not lost, the server has granted the lock to nobody else, unless its key was removed by force. Wrap work that
/// must not go on without the lock in [`run`](LockGuard::run).
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct LockGuard {
    handle: Arc<Handle>,
    name: Arc<LockName>,
    owner: Owner,
    grant: Grant,
    part: Part,
    /// False once the hold was given up in another way than by dropping.
    live: bool,
}

impl LockGuard {
    pub(crate) fn new(handle: Arc<Handle>, name: Arc<LockName>, owner: Owner, grant: Grant) -> Self {
        let part = Part::new(grant.hold.clone());
        LockGuard { handle, name, owner, grant, part, live: true }
    }

    /// The lock's name, as it was given to [`get_lock`](crate::LockClient::get_lock).
    pub fn name(&self) -> &str {
        self.name.given()
    }

    /// Who holds.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether the hold is gone: its deadline has passed, or the server said so. No I/O.
    pub fn is_lost(&self) -> bool {
        self.part.hold.lost().is_some()
    }

    /// How long the hold is certain without another renewal: until its deadline, zero when it is lost. No I/O.
    pub fn remaining(&self) -> Duration {
        self.part.hold.remaining()
    }

    /// Resolves when this guard's hold ends: with [`HoldEnd::Released`] when this guard is unlocked or dropped, with
    /// [`HoldEnd::Lost`] when it is lost, no later than its deadline.
    pub fn lost(&self) -> Lost {
        Lost::new(self.part.clone())
    }

    /// Runs `future` for as long as the hold is certain. The loss is looked at before each poll of `future`; when it comes,
    /// `future` is dropped. Work that may fail itself takes two question marks: `guard.run(work()).await??`.
    ///
    /// # Errors
    /// [`LockLost`]: the hold was lost before `future` was ready.
    ///
    /// # Cancel safety
    /// As `future`; the hold is not touched.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, LockLost> {
        let mut future = pin!(future);
        let mut lost = pin!(self.lost());
        poll_fn(|cx| {
            if let Poll::Ready(HoldEnd::Lost(reason)) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(self.lock_lost(reason)));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Raises the lease: the server keeps the key for at least `lease` from now. Never shortens it. Goes for a leased hold
    /// as for a watched one.
    ///
    /// # Errors
    /// [`Error::Lost`] when the hold is gone (it is never taken anew), [`Error::InvalidDuration`] before anything is sent,
    /// else what the server or the connection says.
    ///
    /// # Cancel safety
    /// Once polled it may take effect, whether or not the future is awaited to its end.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let lease = Lease::for_lock(self.name(), lease)?;
        self.check()?;
        let answer = self.handle.engine.extend(&self.name, self.grant.thread, lease).await;
        match answer {
            Ok(result) => result.and_then(|()| self.check()),
            Err(_) => Err(Error::Closed { lock: self.name().into() }),
        }
    }

    /// Releases the hold and tells how that went. From the call on it is not renewed any more.
    ///
    /// # Errors
    /// [`Error::Lost`] and [`Error::NotHeld`]: it was gone already; nothing of anybody else was touched.
    /// [`Error::Unconfirmed`]: no answer yet; the library goes on trying until the deadline. [`Error::Refused`] and
    /// [`Error::Permission`]: the server refused, and the library goes on trying likewise.
    ///
    /// # Cancel safety
    /// Dropping the future, at whatever point, releases the hold in the background.
    pub async fn unlock(mut self) -> Result<(), Error> {
        let gone = self.check();
        let (sender, receiver) = oneshot::channel();
        self.give_up(Some(sender));
        gone?;
        match receiver.await {
            Ok(result) => result,
            Err(_) => Err(Error::Lost(self.lock_lost(self.part.hold.lost().unwrap_or(LostReason::Gone)))),
        }
    }

    /// Gives the hold an owner of its own, so that the former owner does not re-enter. Local only: nothing is sent.
    ///
    /// # Errors
    /// [`NestedHold`] when other holds of the same owner on this lock exist or are being taken. It holds the guard, and so
    /// the lock, until it is dropped: see [`NestedHold::into_guard`].
    pub fn detach(mut self) -> Result<LockGuard, NestedHold> {
        match self.handle.engine.detach(&self.grant) {
            Some(owner) => {
                self.owner = owner;
                Ok(self)
            }
            None => Err(NestedHold { guard: Box::new(self) }),
        }
    }

    /// Keeps the hold and gives up the guard, for code in Java's style: [`RLock::unlock`](crate::RLock::unlock) by the
    /// returned owner releases it. Until then it is renewed (or, with a lease, runs out), at most for
    /// [`max_hold`](crate::RLock::with_max_hold).
    pub fn forget(mut self) -> Owner {
        self.handle.engine.forget(&self.grant);
        self.live = false;
        self.owner
    }

    fn check(&self) -> Result<(), Error> {
        match self.part.hold.lost() {
            Some(reason) => Err(Error::Lost(self.lock_lost(reason))),
            None => Ok(()),
        }
    }

    fn lock_lost(&self, reason: LostReason) -> LockLost {
        LockLost { lock: self.name().into(), owner: self.owner, reason }
    }

    fn give_up(&mut self, waiter: Option<oneshot::Sender<Result<(), Error>>>) {
        if std::mem::replace(&mut self.live, false) {
            self.handle.engine.leave(&self.grant, waiter);
            self.part.release();
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.give_up(None);
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("owner", &self.owner)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A nested hold cannot be [detached](LockGuard::detach): the others of its owner would stay behind.
#[derive(Debug, thiserror::Error)]
#[error("lock `{}` is held more than once by {}: only a single hold can be detached", guard.name(), guard.owner())]
pub struct NestedHold {
    guard: Box<LockGuard>,
}

impl NestedHold {
    /// The guard, unchanged.
    pub fn into_guard(self) -> LockGuard {
        *self.guard
    }
}
