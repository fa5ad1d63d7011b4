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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_fraction_of_a_millisecond_is_rounded_up_and_nonsense_is_refused() {
        let ms = |d| Lease::new(d).map(Lease::as_millis);
        assert_eq!(ms(Duration::from_nanos(1)), Ok(1));
        assert_eq!(ms(Duration::from_micros(1500)), Ok(2));
        assert_eq!(ms(Duration::from_millis(999)), Ok(999));
        assert_eq!(ms(Duration::ZERO), Err(InvalidDuration::Zero));
        assert_eq!(ms(Duration::from_millis(MAX_LEASE_MS)), Ok(MAX_LEASE_MS));
        let too_long = Err(InvalidDuration::TooLong { max_ms: MAX_LEASE_MS });
        assert_eq!(ms(Duration::from_millis(MAX_LEASE_MS + 1)), too_long);
        assert_eq!(ms(Duration::MAX), too_long);
    }

    proptest! {
        #[test]
        fn a_deadline_is_before_the_end_of_the_lease_by_the_margin(lease in 1u64..=10_000_000_000) {
            let now = Moment::now();
            let lease = Lease::new(Duration::from_millis(lease)).unwrap();
            let end = now.after(lease.as_duration());
            let left = lease.deadline(now).until(end);
            prop_assert!(lease.deadline(now) >= now);
            let margin = (lease.as_duration() / 100).max(Duration::from_millis(2)).min(lease.as_duration());
            prop_assert_eq!(left, margin);
        }

        #[test]
        fn a_lease_never_becomes_shorter_on_the_wire(nanos in 1u64..u64::MAX / 4) {
            let asked = Duration::from_nanos(nanos);
            let lease = Lease::new(asked).unwrap().as_duration();
            prop_assert!(lease >= asked);
            prop_assert!(lease - asked < Duration::from_millis(1));
        }
    }
}
