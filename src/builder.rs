//! [`LockClientBuilder`]: every setting with its unit, its default and its bounds.

use std::sync::Arc;
use std::time::Duration;

use crate::client::LockClient;
use crate::config::{Config, LONGEST_TIMEOUT};
use crate::engine::Engine;
use crate::error::ConnectError;

/// Settings of a [`LockClient`]. Nothing is checked or sent before [`connect`](LockClientBuilder::connect).
///
/// # Examples
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use redisson_lock::LockClient;
///
/// let client = LockClient::builder()
///     .url("redis://user:p%40ss@127.0.0.1:6379")
///     .watchdog_timeout(Duration::from_secs(10))
///     .label("billing")
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect` is called"]
pub struct LockClientBuilder {
    config: Config,
}

impl LockClientBuilder {
    pub(crate) fn new() -> Self {
        LockClientBuilder { config: Config::new("redis://127.0.0.1:6379") }
    }

    /// Where the server is: `redis://`, `valkey://`, `rediss://` (with the feature `rustls` or `native-tls`) or
    /// `redis+unix:///path`. Credentials are percent-encoded: `redis://user:p%40ss@host:6379/0`.
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        self.config.url = url.as_ref().to_owned();
        self
    }

    /// The database, over the one in the URL. Note that channels are not bound to a database: locks of one name in two
    /// databases wake each other's waiters, harmlessly.
    pub fn database(mut self, database: u8) -> Self {
        self.config.database = Some(database);
        self
    }

    /// A name for humans: sent with CLIENT SETNAME on each connection. Never part of the holder field.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = Some(label.into());
        self
    }

    /// Puts `prefix` before every name to make the Redis key. Replaces a [`name_mapper`](Self::name_mapper).
    pub fn key_prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        self.name_mapper(move |name| format!("{prefix}{name}"))
    }

    /// Makes the Redis key from a name, as Redisson's `NameMapper.map` does. Every participant must map alike.
    pub fn name_mapper(mut self, mapper: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.config.name_mapper = Some(Arc::new(mapper));
        self
    }

    /// Refuses names whose channel would be in another cluster slot than their key. Defaults to false. Set it if the same
    /// names are to be used with a cluster, by whomever.
    pub fn cluster_safe_names(mut self, on: bool) -> Self {
        self.config.one_slot = on;
        self
    }

    /// The lease of a hold for which none was given, renewed every third of it; Java's `lockWatchdogTimeout`. Defaults to
    /// 30 s; at least 200 ms. After a crash the lock stays for at most this long.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.config.watchdog_timeout = timeout;
        self
    }

    /// How many holds are renewed in one call; Java's `lockWatchdogBatchSize`. Defaults to 100; 1 to 7000.
    pub fn watchdog_batch_size(mut self, holds: usize) -> Self {
        self.config.watchdog_batch = holds;
        self
    }

    /// How long a waiter sleeps at most without a message before it looks again. Defaults to 5 s.
    pub fn recheck_interval(mut self, interval: Duration) -> Self {
        self.config.recheck_interval = interval;
        self
    }

    /// How long connecting may take, at most a year. Defaults to 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// Whether [`connect`](Self::connect) waits for a server that is down, for as long as it takes. Defaults to false.
    pub fn wait_for_server(mut self, wait: bool) -> Self {
        self.config.wait_for_server = wait;
        self
    }

    /// How long an operation waits for its answer, at most a year. Defaults to 3 s. The watchdog's own operations wait at most a sixth of
    /// the watchdog timeout.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.config.command_timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// After how long without any answer `lock()` gives up; `None`: never. Defaults to 60 s.
    pub fn outage_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.config.outage_timeout = timeout.into();
        self
    }

    /// How long dropping the last handle may wait for pending releases, at most a year. Defaults to 500 ms.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.config.drain_timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// After how long a grant goes back that nobody picks up, because nobody polls the future that asked for it. Defaults
    /// to 1 s; at most a third of the lease counts.
    pub fn undelivered_grant(mut self, timeout: Duration) -> Self {
        self.config.undelivered_grant = timeout;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`]: a setting out of bounds or a URL that cannot be used (nothing was sent then), wrong credentials,
    /// nobody there, or no answer within the connect timeout. Never shows a password.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<LockClient, ConnectError> {
        Engine::connect(self.config).await.map(LockClient::from_engine)
    }
}
