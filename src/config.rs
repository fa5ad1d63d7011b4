//! What can be set, and what is refused. Values only.

use std::fmt;
use std::time::Duration;

use crate::error::ConnectError;
use crate::lease::Lease;
use crate::names::NameMapper;

/// The shortest watchdog timeout: below it a busy machine would lose locks that it means to keep.
pub(crate) const MIN_WATCHDOG: Duration = Duration::from_millis(200);

/// A longer timeout counts as this: added to a moment, it must not overflow.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);

/// Everything that the builder collects.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) url: String,
    pub(crate) database: Option<u8>,
    pub(crate) label: Option<String>,
    pub(crate) name_mapper: Option<NameMapper>,
    pub(crate) one_slot: bool,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) watchdog_batch: usize,
    pub(crate) recheck_interval: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) wait_for_server: bool,
    pub(crate) command_timeout: Duration,
    pub(crate) outage_timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,
    pub(crate) undelivered_grant: Duration,
}

impl Config {
    pub(crate) fn new(url: &str) -> Self {
        Config {
            url: url.to_owned(),
            database: None,
            label: None,
            name_mapper: None,
            one_slot: false,
            watchdog_timeout: Duration::from_secs(30),
            watchdog_batch: 100,
            recheck_interval: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            wait_for_server: false,
            command_timeout: Duration::from_secs(3),
            outage_timeout: Some(Duration::from_secs(60)),
            drain_timeout: Duration::from_millis(500),
            undelivered_grant: Duration::from_secs(1),
        }
    }

    /// The watchdog timeout as a lease, once [`Config::check`] has passed.
    pub(crate) fn watchdog_lease(&self) -> Lease {
        Lease::new(self.watchdog_timeout).expect("checked when the client was built")
    }

    /// The command timeout of the watchdog's own connection: several tries must fit into a lease.
    pub(crate) fn watchdog_command_timeout(&self) -> Duration {
        self.command_timeout.min(self.watchdog_timeout / 6)
    }

    /// Refuses what could not work, before anything is sent.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let refuse = |message: String| Err(ConnectError::config(message));
        if self.watchdog_timeout < MIN_WATCHDOG {
            return refuse(format!("watchdog_timeout {:?} is below {MIN_WATCHDOG:?}", self.watchdog_timeout));
        }
        if let Err(why) = Lease::new(self.watchdog_timeout) {
            return refuse(format!("watchdog_timeout {:?}: {why}", self.watchdog_timeout));
        }
        if self.watchdog_batch == 0 || self.watchdog_batch > 7_000 {
            return refuse(format!("watchdog_batch {} is not in 1..=7000", self.watchdog_batch));
        }
        let positive = [
            ("recheck_interval", self.recheck_interval),
            ("connect_timeout", self.connect_timeout),
            ("command_timeout", self.command_timeout),
            ("undelivered_grant", self.undelivered_grant),
        ];
        for (what, value) in positive {
            if value < Duration::from_millis(1) {
                return refuse(format!("{what} {value:?} is below 1 ms"));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Config {
    /// Without the URL: a password may stand in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("database", &self.database)
            .field("label", &self.label)
            .field("watchdog_timeout", &self.watchdog_timeout)
            .field("command_timeout", &self.command_timeout)
            .finish_non_exhaustive()
    }
}
