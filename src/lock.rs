//! [`RLock`]: the reentrant lock, with the verbs that a user of Redisson expects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Acquire;
use crate::client::Handle;
use crate::clock::Moment;
use crate::engine::call::{Patience, Request};
use crate::error::{Error, InvalidDuration};
use crate::guard::LockGuard;
use crate::info::{LockHolder, LockInfo};
use crate::lease::Lease;
use crate::names::LockName;
use crate::owner::Owner;
use crate::wire::{Op, Reply, TimeToLive};

/// A distributed reentrant lock; Redisson's `RLock`. Cheap to clone; settings belong to the handle.
///
/// | Java | here |
/// |---|---|
/// | `lock()` | [`lock().await?`](RLock::lock) |
/// | `tryLock()` | [`try_lock().await?`](RLock::try_lock) |
/// | `tryLock(100, SECONDS)` | [`try_lock_for(wait).await?`](RLock::try_lock_for) |
/// | `lock(10, SECONDS)` | [`with_lease(lease).lock().await?`](RLock::with_lease) |
/// | `tryLock(100, 10, SECONDS)` | `with_lease(lease).try_lock_for(wait).await?` |
/// | `unlock()` | [`guard.unlock().await?`](LockGuard::unlock), or dropping the guard |
/// | `forceUnlock()` | [`force_unlock`](RLock::force_unlock) |
/// | `isLocked()`, `isHeldByCurrentThread()`, `getHoldCount()` | [`is_locked`](RLock::is_locked), [`is_held`](RLock::is_held), [`hold_count`](RLock::hold_count) |
/// | `remainTimeToLive()` | [`remaining_lease`](RLock::remaining_lease) |
///
/// Who holds is an [`Owner`], by default the current tokio task.
#[derive(Clone)]
pub struct RLock {
    handle: Arc<Handle>,
    name: Arc<LockName>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    owner: OwnerChoice,
}

#[derive(Clone, Copy, Debug)]
enum OwnerChoice {
    Current,
    Given(Owner),
    Fresh,
}

impl RLock {
    pub(crate) fn new(handle: Arc<Handle>, name: Arc<LockName>) -> Self {
        RLock { handle, name, lease: None, max_hold: None, owner: OwnerChoice::Current }
    }

    /// The name, as given.
    pub fn name(&self) -> &str {
        self.name.given()
    }

    // Settings of the handle.

    /// Holds taken through the returned handle have this lease and are not renewed. A fraction of a millisecond is rounded
    /// up; zero, or more than 2^53 - 1 ms, is refused by the verb with [`Error::InvalidDuration`].
    #[must_use = "this returns a new handle"]
    pub fn with_lease(&self, lease: Duration) -> RLock {
        RLock { lease: Some(lease), ..self.clone() }
    }

    /// The watchdog lets holds taken through the returned handle run out after `max`, whoever has forgotten them.
    #[must_use = "this returns a new handle"]
    pub fn with_max_hold(&self, max: Duration) -> RLock {
        RLock { max_hold: Some(max), ..self.clone() }
    }

    /// Every call through the returned handle acts for `owner`.
    #[must_use = "this returns a new handle"]
    pub fn with_owner(&self, owner: Owner) -> RLock {
        RLock { owner: OwnerChoice::Given(owner), ..self.clone() }
    }

    /// Every acquire through the returned handle has an owner of its own: a second one in the same task waits (or gets
    /// `None`), as between strangers.
    #[must_use = "this returns a new handle"]
    pub fn non_reentrant(&self) -> RLock {
        RLock { owner: OwnerChoice::Fresh, ..self.clone() }
    }

    // Taking it.

    /// Takes the lock, waiting for as long as it takes. Java: `lock()`.
    ///
    /// # Who re-enters
    /// The owner is the current task unless you say otherwise, and an owner that holds the lock re-enters at once. Two
    /// things follow that surprise:
    /// * **Two `lock()` futures joined in one task share the task**, so both get the lock. Give each an
    ///   [`Owner::scope`], or use [`non_reentrant`](RLock::non_reentrant).
    /// * **A loop that takes the lock and moves the guard into `spawn` re-enters on its next turn.**
    ///   [`detach`](LockGuard::detach) the guard.
    ///
    /// # Fairness
    /// Callers of one client are served in the order of their first poll. Between processes it is whoever comes first at
    /// the server; a process that has taken the lock 16 times in a row while others listen gives way.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidDuration`] and [`Error::Closed`] before anything is sent;
    /// [`Error::WrongType`], [`Error::Permission`] and [`Error::Refused`] at once when the server says so;
    /// [`Error::Timeout`] after [`outage_timeout`](crate::LockClientBuilder::outage_timeout) without any answer;
    /// [`Error::ExpiredBeforeUse`] when the lease was shorter than the way. Connection loss and passing refusals are
    /// waited out.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue, and releases what was granted meanwhile.
    pub async fn lock(&self) -> Result<LockGuard, Error> {
        match self.acquire(|_| Patience::Until(Moment::FAR)).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("a wait without an end ended without a grant"),
        }
    }

    /// Tries once, without waiting; `None`: somebody else holds it. Java: `tryLock()`. Keep the guard:
    /// ```
    /// # async fn f(lock: redisson_lock::RLock) -> Result<(), redisson_lock::Error> {
    /// if let Some(guard) = lock.try_lock().await? {
    ///     // ... work, under the lock ...
    ///     guard.unlock().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    /// (`if lock.try_lock().await?.is_some() { work() }` drops the guard, and so releases the lock, before `work()`.)
    ///
    /// # Errors
    /// Any failure of the one attempt, see [`Error`]; at the latest after the command timeout.
    ///
    /// # Cancel safety
    /// Dropping the future releases what was granted meanwhile.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.acquire(|_| Patience::Once).await
    }

    /// Waits at most `wait`; `None`: somebody else held it until the end. Java: `tryLock(wait, unit)`, and with
    /// [`with_lease`](RLock::with_lease) `tryLock(wait, lease, unit)`. Zero is one attempt, as
    /// [`try_lock`](RLock::try_lock); [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    /// [`Error::Timeout`] when not one answer came during the whole wait; else as [`lock`](RLock::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](RLock::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.acquire(|now| if wait.is_zero() { Patience::Once } else { Patience::Until(now.after(wait)) }).await
    }

    async fn acquire(&self, patience: impl FnOnce(Moment) -> Patience) -> Result<Option<LockGuard>, Error> {
        self.check_name()?;
        let watchdog = self.handle.engine.io.config.watchdog_lease();
        let lease = self.lease.map_or(Ok(watchdog), |lease| Lease::for_lock(self.name(), lease))?;
        if self.max_hold.is_some_and(|max| max.is_zero()) {
            return Err(Error::InvalidDuration {
                lock: self.name().into(),
                what: "max_hold",
                value: Duration::ZERO,
                why: InvalidDuration::Zero,
            });
        }
        let owner = self.resolve_owner();
        let request = Request {
            name: self.name.clone(),
            owner,
            patience: patience(Moment::now()),
            lease,
            watched: self.lease.is_none(),
            max_hold: self.max_hold,
        };
        let grant = Acquire::new(self.handle.clone(), request).await?;
        Ok(grant.map(|grant| LockGuard::new(self.handle.clone(), self.name.clone(), owner, grant)))
    }

    // Giving it back.

    /// Releases a [forgotten](LockGuard::forget) hold of the current owner. Java: `unlock()`.
    ///
    /// # Errors
    /// [`Error::HeldByGuard`] when the owner has only guarded holds, [`Error::NotHeld`] when it has none; nothing is sent
    /// then. Else as [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    /// Once polled, the release goes on in the background.
    pub async fn unlock(&self) -> Result<(), Error> {
        self.check_name()?;
        let owner = self.resolve_owner();
        match self.handle.engine.unlock_forgotten(&self.name, owner).await {
            Ok(result) => result,
            Err(_) => Err(Error::Closed { lock: self.name().into() }),
        }
    }

    /// Removes the lock, whoever holds it, and wakes a waiter; whether there was one. Java: `forceUnlock()`. The former
    /// holder is told within one renewal period.
    ///
    /// # Errors
    /// [`Error::WrongType`] when the key is no lock; it is left alone then. Else see [`Error`].
    ///
    /// # Cancel safety
    /// Once polled it may take effect.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let reply = self.query(Op::ForceRelease { name: self.name.clone() }).await?;
        self.handle.engine.check_holder(&self.name);
        Ok(matches!(reply, Reply::Released { .. }))
    }

    // Asking about it.

    /// Whether anybody holds the lock. Java: `isLocked()`.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.query(Op::Exists { name: self.name.clone() }).await? == Reply::Exists(true))
    }

    /// Whether the current owner holds the lock, by the server's word. Java: `isHeldByCurrentThread()`. Of a lock that this
    /// client knows nothing of, no question is sent.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn is_held(&self) -> Result<bool, Error> {
        Ok(self.hold_count().await? > 0)
    }

    /// Whether `owner` holds the lock, by the server's word. Java: `isHeldByThread(id)`.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn is_held_by(&self, owner: Owner) -> Result<bool, Error> {
        Ok(self.count_of(owner).await? > 0)
    }

    /// How many holds the current owner has on the lock, by the server's count. Java: `getHoldCount()`.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn hold_count(&self) -> Result<u64, Error> {
        self.count_of(self.resolve_owner()).await
    }

    async fn count_of(&self, owner: Owner) -> Result<u64, Error> {
        self.check_name()?;
        let Some(thread) = self.handle.engine.held_by(&self.name, owner) else { return Ok(0) };
        match self.query(Op::HoldCount { name: self.name.clone(), thread }).await? {
            Reply::HoldCount(count) => Ok(count),
            _ => Ok(0),
        }
    }

    /// How long the server keeps the lock, whoever holds it; `None`: nobody does. Java: `remainTimeToLive()`. A key without
    /// a TTL (somebody else's doing) is [`Duration::MAX`].
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        match self.query(Op::TimeToLive { name: self.name.clone() }).await? {
            Reply::TimeToLive(ttl) => Ok(duration(ttl)),
            _ => Ok(None),
        }
    }

    /// Everything that the server knows of the lock, for people and dashboards.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn inspect(&self) -> Result<LockInfo, Error> {
        match self.query(Op::Inspect { name: self.name.clone() }).await? {
            Reply::Inspected { holders, ttl, subscribers } => Ok(LockInfo {
                holders: holders
                    .into_iter()
                    .map(|(field, count)| LockHolder { ours: self.is_ours(&field), field, count })
                    .collect(),
                remaining_lease: duration(ttl),
                subscribers,
            }),
            _ => Ok(LockInfo::default()),
        }
    }

    fn is_ours(&self, field: &str) -> bool {
        field.split_once(':').is_some_and(|(client, _)| client == &*self.handle.engine.io.client_id)
    }

    async fn query(&self, op: Op) -> Result<Reply, Error> {
        self.check_name()?;
        self.handle.engine.query(&self.name, op).await
    }

    fn check_name(&self) -> Result<(), Error> {
        self.name.check(self.handle.engine.io.config.one_slot)
    }

    fn resolve_owner(&self) -> Owner {
        match self.owner {
            OwnerChoice::Current => Owner::current(),
            OwnerChoice::Given(owner) => owner,
            OwnerChoice::Fresh => Owner::new(),
        }
    }
}

impl fmt::Debug for RLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RLock")
            .field("name", &self.name())
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

fn duration(ttl: TimeToLive) -> Option<Duration> {
    match ttl {
        TimeToLive::Absent => None,
        TimeToLive::Endless => Some(Duration::MAX),
        TimeToLive::Left(left) => Some(left),
    }
}
