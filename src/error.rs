//! What can go wrong, one variant for each thing that a caller can decide on. Values only.
//!
//! "Somebody else holds it" is not an error: the verbs that may find that say `None`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::owner::Owner;

/// The error below an error, shared so that several waiters can be told of the same one.
pub(crate) type Source = Arc<dyn std::error::Error + Send + Sync>;

/// Why a verb of [`RLock`](crate::RLock) or [`LockGuard`](crate::LockGuard) failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The owner does not hold the lock (any more); nothing was changed. Java: `IllegalMonitorStateException`.
    #[error("lock `{lock}` is not held by {owner}: {why}")]
    NotHeld {
        /// The lock's name.
        lock: Box<str>,
        /// Who tried.
        owner: Owner,
        /// What is known of the reason.
        why: NotHeld,
    },
    /// The owner holds the lock through guards only: release those, or [`LockGuard::forget`](crate::LockGuard::forget)
    /// one first. Nothing was sent.
    #[error("lock `{lock}` is held by a guard of {owner}: unlock the guard")]
    HeldByGuard {
        /// The lock's name.
        lock: Box<str>,
        /// Who tried.
        owner: Owner,
    },
    /// The hold is lost; whatever it protected may be in other hands.
    #[error(transparent)]
    Lost(#[from] LockLost),
    /// The lock was granted, but its lease had run out when the answer came. It was released, not handed out. Take a
    /// longer lease.
    #[error("lock `{lock}` was granted to {owner} after its lease of {lease:?} had run out on the way")]
    ExpiredBeforeUse {
        /// The lock's name.
        lock: Box<str>,
        /// For whom it was granted.
        owner: Owner,
        /// The lease that was too short.
        lease: Duration,
    },
    /// The key holds something that is not a lock. It was left alone.
    #[error("the key of lock `{lock}` holds another type of value")]
    WrongType {
        /// The lock's name.
        lock: Box<str>,
    },
    /// No server could serve this name. Nothing was sent.
    #[error("invalid lock name {lock:?}: {why}")]
    InvalidName {
        /// The name as given.
        lock: Box<str>,
        /// What is wrong with it.
        why: InvalidName,
    },
    /// A duration that cannot be used. Nothing was sent.
    #[error("invalid {what} {value:?} for lock `{lock}`: {why}")]
    InvalidDuration {
        /// The lock's name.
        lock: Box<str>,
        /// Which duration: `lease` or `max_hold`.
        what: &'static str,
        /// The value as given.
        value: Duration,
        /// What is wrong with it.
        why: InvalidDuration,
    },
    /// The Redis user lacks a right; the server's words name the key, channel or command.
    #[error("no permission for lock `{lock}`: {message}")]
    Permission {
        /// The lock's name.
        lock: Box<str>,
        /// The server's words.
        message: Box<str>,
    },
    /// The server refused for a reason of its own, without effect.
    #[error("the server refused an operation on lock `{lock}`: {message}")]
    Refused {
        /// The lock's name.
        lock: Box<str>,
        /// Which kind of refusal.
        kind: Refused,
        /// The server's words.
        message: Box<str>,
    },
    /// The connection is down or broke on the way.
    #[error("no connection to the server for lock `{lock}`")]
    Connection {
        /// The lock's name.
        lock: Box<str>,
        /// The error below.
        #[source]
        source: Source,
    },
    /// No answer in time. After a `try_lock_for`: not one answer came during the whole wait.
    #[error("no answer about lock `{lock}` within {waited:?}")]
    Timeout {
        /// The lock's name.
        lock: Box<str>,
        /// How long was waited.
        waited: Duration,
    },
    /// The release was sent and is not confirmed. The library goes on trying until the hold's deadline, after which the
    /// server drops it by itself.
    #[error("the release of lock `{lock}` by {owner} is not confirmed; it is tried for another {goes_on:?}")]
    Unconfirmed {
        /// The lock's name.
        lock: Box<str>,
        /// Whose hold.
        owner: Owner,
        /// How long the library goes on trying.
        goes_on: Duration,
        /// What the last attempt ran into.
        #[source]
        source: Option<Source>,
    },
    /// The client was shut down.
    #[error("the client of lock `{lock}` is closed")]
    Closed {
        /// The lock's name.
        lock: Box<str>,
    },
}

/// What is known about a hold that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotHeld {
    /// This owner holds nothing here that this client knows of.
    Never,
    /// It did, and the hold ended without a release: its lease ran out or the key was removed.
    Expired,
    /// It did, and the lock is now held by this holder field (`client-id:thread-id`).
    TakenBy(Box<str>),
}

impl fmt::Display for NotHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotHeld::Never => f.write_str("it never was, or was released"),
            NotHeld::Expired => f.write_str("its hold is gone"),
            NotHeld::TakenBy(holder) => write!(f, "it was taken by {holder}"),
        }
    }
}

/// A hold ended without being released by its owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lock `{lock}` of {owner} is lost: {reason}")]
#[non_exhaustive]
pub struct LockLost {
    /// The lock's name.
    pub lock: Box<str>,
    /// Whose hold.
    pub owner: Owner,
    /// How it was lost.
    pub reason: LostReason,
}

/// How a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its deadline passed without a confirmed renewal (or, for a leased hold, at all).
    Expired,
    /// The server said that the hold is gone: forced, flushed, evicted, taken by another.
    Gone,
    /// The key holds another type of value now.
    WrongType,
    /// The client was shut down under it.
    Closed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Expired => "its lease ran out",
            LostReason::Gone => "the server no longer knows it",
            LostReason::WrongType => "another type of value lies at its key",
            LostReason::Closed => "the client was shut down",
        })
    }
}

/// How a hold ended, as [`LockGuard::lost`](crate::LockGuard::lost) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldEnd {
    /// Its owner released it (or dropped the guard).
    Released,
    /// It was lost.
    Lost(LostReason),
}

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidName {
    /// The name, or the key that the mapper made of it, is empty.
    Empty,
    /// In a cluster the key and its channel would live in different slots: such a lock could be taken and never released.
    ChannelInOtherSlot,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidName::Empty => "it is empty",
            InvalidName::ChannelInOtherSlot => "in a cluster its channel would be in another slot than its key",
        })
    }
}

/// What is wrong with a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidDuration {
    /// It is zero.
    Zero,
    /// It is longer than can be counted exactly.
    TooLong {
        /// The most that is accepted, in milliseconds.
        max_ms: u64,
    },
}

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidDuration::Zero => f.write_str("it is zero"),
            InvalidDuration::TooLong { max_ms } => write!(f, "more than {max_ms} ms"),
        }
    }
}

/// Kinds of refusal by a server that is otherwise well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// It is out of memory and evicts nothing (OOM).
    OutOfMemory,
    /// It cannot save and therefore takes no writes (MISCONF).
    Misconf,
    /// It is a replica (READONLY).
    ReadOnly,
    /// Too few replicas are connected (NOREPLICAS).
    NoReplicas,
    /// It is still loading its data (LOADING).
    Loading,
    /// A script or function runs for too long (BUSY).
    Busy,
    /// A cluster or its master is down, or a slot is being moved.
    Unavailable,
    /// It wants (other) credentials.
    Authentication,
    /// Something else; see the message.
    Other,
}

/// Why [`LockClientBuilder::connect`](crate::LockClientBuilder::connect) failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot connect: {message}")]
#[non_exhaustive]
pub struct ConnectError {
    /// Which kind of trouble.
    pub kind: ConnectErrorKind,
    pub(crate) message: Box<str>,
    #[source]
    pub(crate) source: Option<Source>,
}

impl ConnectError {
    pub(crate) fn config(message: impl Into<Box<str>>) -> Self {
        ConnectError { kind: ConnectErrorKind::Config, message: message.into(), source: None }
    }
}

/// Kinds of [`ConnectError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// A setting is out of its range. Nothing was sent.
    Config,
    /// The URL cannot be used. Nothing was sent.
    BadUrl,
    /// `rediss://` without one of the features `rustls` and `native-tls`. Nothing was sent.
    TlsNotBuilt,
    /// A kind of server that this version does not speak to (cluster, sentinel). Nothing was sent.
    Unsupported,
    /// Wrong or missing credentials.
    Authentication,
    /// The user may not do what connecting needs.
    Permission,
    /// Nobody answers at that address.
    Unreachable,
    /// It took longer than the connect timeout.
    Timeout,
}

/// Why [`LockClient::shutdown`](crate::LockClient::shutdown) did not end clean.
#[derive(Clone, Debug, thiserror::Error)]
#[error("shut down with {} release(s) not confirmed", unconfirmed.len())]
#[non_exhaustive]
pub struct ShutdownError {
    /// The locks whose release was not confirmed in time; the server drops them when their leases end.
    pub unconfirmed: Vec<Box<str>>,
}
