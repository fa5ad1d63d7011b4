//! What [`RLock::inspect`](crate::RLock::inspect) tells. Values only.

use std::time::Duration;

/// What the server knows of a lock; see [`RLock::inspect`](crate::RLock::inspect).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The holder fields; empty when nobody holds it.
    pub holders: Vec<LockHolder>,
    /// How long the server keeps it; `None` when there is no key, [`Duration::MAX`] when the key has no TTL.
    pub remaining_lease: Option<Duration>,
    /// How many connections listen to its channel; `None` when the server does not tell.
    pub subscribers: Option<u64>,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The holder field, `client-id:thread-id`.
    pub field: Box<str>,
    /// Its hold count.
    pub count: u64,
    /// Whether it is a hold of this client.
    pub ours: bool,
}
