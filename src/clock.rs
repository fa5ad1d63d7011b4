//! The one clock of this crate: monotonic, and going on while the machine sleeps.
//!
//! A lease runs on at the server while a laptop is shut or a virtual machine is frozen, so a deadline measured with a
//! clock that stops meanwhile would lie. Values only: this file knows no connection and no timer.

use std::sync::OnceLock;
use std::time::Duration;

/// A moment on the clock that counts suspend, in nanoseconds since the process first asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Later than anything that happens.
    pub(crate) const FAR: Moment = Moment(u64::MAX);

    /// The present moment.
    pub(crate) fn now() -> Self {
        static ORIGIN: OnceLock<boot_time::Instant> = OnceLock::new();
        let origin = *ORIGIN.get_or_init(boot_time::Instant::now);
        Moment(nanos(origin.elapsed()).saturating_add(1))
    }

    /// This moment plus `by`; saturates at [`Moment::FAR`].
    pub(crate) fn after(self, by: Duration) -> Self {
        Moment(self.0.saturating_add(nanos(by)))
    }

    /// How long from `self` until `later`; zero when it has passed.
    pub(crate) fn until(self, later: Moment) -> Duration {
        if later == Moment::FAR {
            return Duration::MAX;
        }
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    /// As a number that an atomic can hold.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Moment::to_bits`].
    pub(crate) fn from_bits(bits: u64) -> Self {
        Moment(bits)
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
