//! Leases and the deadlines that follow from them. Values only.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, InvalidDuration};

/// The longest lease that is accepted: 2^53 - 1 ms, beyond which the numbers inside a Redis script are no longer exact.
pub(crate) const MAX_LEASE_MS: u64 = (1 << 53) - 1;

/// A lease as it goes on the wire: whole milliseconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lease(u64);

impl Lease {
    /// Rounds a fraction of a millisecond up; refuses zero and what Redis could not take.
    pub(crate) fn new(duration: Duration) -> Result<Self, InvalidDuration> {
        if duration.is_zero() {
            return Err(InvalidDuration::Zero);
        }
        let ms = duration.as_nanos().div_ceil(1_000_000);
        match u64::try_from(ms) {
            Ok(ms) if ms <= MAX_LEASE_MS => Ok(Lease(ms)),
            _ => Err(InvalidDuration::TooLong { max_ms: MAX_LEASE_MS }),
        }
    }

    /// The same for a lease that belongs to a call on `lock`.
    pub(crate) fn for_lock(lock: &str, duration: Duration) -> Result<Self, Error> {
        Lease::new(duration).map_err(|why| Error::InvalidDuration {
            lock: lock.into(),
            what: "lease",
            value: duration,
            why,
        })
    }

    /// Milliseconds, as the server counts them.
    pub(crate) fn as_millis(self) -> u64 {
        self.0
    }

    pub(crate) fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// The last moment at which a hold is certain whose acquire or renewal was handed to the connection at `handed`:
    /// the lease, less a margin of 2 ms or 1 %, whichever is more.
    pub(crate) fn deadline(self, handed: Moment) -> Moment {
        let lease = self.as_duration();
        let margin = (lease / 100).max(Duration::from_millis(2));
        handed.after(lease.saturating_sub(margin))
    }

    /// How long after a confirmed renewal the next one is due.
    pub(crate) fn period(self) -> Duration {
        self.as_duration() / 3
    }
}
