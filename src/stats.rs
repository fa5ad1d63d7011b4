//! Plain counters. Values only.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A snapshot of what a client did and does; see [`LockClient::stats`](crate::LockClient::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Holder fields held now (nested holds of one owner count once).
    pub held: u64,
    /// Calls in a queue now.
    pub waiting: u64,
    /// Grants so far, nested ones included.
    pub acquired: u64,
    /// Waits that found the lock held by another process or owner.
    pub contended: u64,
    /// Renewals confirmed.
    pub renewals: u64,
    /// Renewals that had to be tried again.
    pub late: u64,
    /// Holds lost.
    pub lost: u64,
    /// Acquires of doubtful fate that are being cleared up now.
    pub doubtful: u64,
    /// Attempts of waiters that no message caused: a TTL or the re-check interval had passed.
    pub repolls: u64,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) acquired: AtomicU64,
    pub(crate) contended: AtomicU64,
    pub(crate) renewals: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) repolls: AtomicU64,
}

impl Counters {
    pub(crate) fn snapshot(&self) -> Stats {
        Stats {
            acquired: self.acquired.load(Relaxed),
            contended: self.contended.load(Relaxed),
            renewals: self.renewals.load(Relaxed),
            late: self.late.load(Relaxed),
            lost: self.lost.load(Relaxed),
            repolls: self.repolls.load(Relaxed),
            ..Stats::default()
        }
    }
}
