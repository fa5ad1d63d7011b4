//! [`LockClient`]: one client id, its connections and its thread.

use std::sync::Arc;
use std::time::Duration;

use crate::builder::LockClientBuilder;
use crate::engine::Engine;
use crate::error::{ConnectError, ShutdownError};
use crate::lock::RLock;
use crate::names::LockName;
use crate::stats::Stats;

/// What every lock, guard and pending call holds of its client. The last one that goes says good-bye to the server.
pub(crate) struct Handle {
    pub(crate) engine: Arc<Engine>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.engine.close_blocking();
    }
}

/// A client for distributed locks, to be made once and shared. Cheap to clone.
///
/// A client is one participant: its id (a UUID made from the operating system's randomness) is the first half of every
/// holder field. It owns three connections (operations, watchdog, subscriptions) and one thread, on which the watchdog runs
/// apart from your runtime: code that blocks the runtime does not cost the lock.
///
/// Operations travel on the runtime that called [`connect`](LockClient::connect). When that runtime has ended, or when
/// there was none, they travel on the client's own thread. An existing fred client cannot be passed in: its defaults (three
/// attempts per command, no timeout) would break what this crate promises.
///
/// # Dropping
/// When the last clone, lock and guard is gone, what is still held is released. Dropping the last one waits for pending
/// releases, at most [`drain_timeout`](LockClientBuilder::drain_timeout), and not at all when there are none.
///
/// # Examples
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use redisson_lock::LockClient;
///
/// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
/// let lock = client.get_lock("order:42");
/// let guard = lock.lock().await?;
/// // ... nobody else, Java or Rust, is in here ...
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockClient {
    handle: Arc<Handle>,
}

impl LockClient {
    /// Connects with the default settings.
    ///
    /// # Errors
    /// See [`LockClientBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().url(url).connect().await
    }

    /// Starts with the default settings and `redis://127.0.0.1:6379`.
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::new()
    }

    pub(crate) fn from_engine(engine: Arc<Engine>) -> Self {
        LockClient { handle: Arc::new(Handle { engine }) }
    }

    /// The reentrant lock of this name; Java's `getLock`. Sends nothing. A name that cannot be used is told by the verbs.
    pub fn get_lock(&self, name: impl AsRef<str>) -> RLock {
        let mapper = self.handle.engine.io.config.name_mapper.as_ref();
        RLock::new(self.handle.clone(), Arc::new(LockName::new(name.as_ref(), mapper)))
    }

    /// The client id: the part before the colon of every holder field.
    pub fn id(&self) -> &str {
        &self.handle.engine.io.client_id
    }

    /// Counters, as of now.
    pub fn stats(&self) -> Stats {
        self.handle.engine.stats()
    }

    /// Ends the client: new calls and waiting ones fail with [`Error::Closed`](crate::Error::Closed), every hold is
    /// released (its guard is told [`LostReason::Closed`](crate::LostReason::Closed)), the connections are closed.
    ///
    /// A second call waits for the first and returns the same.
    ///
    /// # Errors
    /// [`ShutdownError`] lists the locks whose release was not confirmed `within`.
    ///
    /// # Cancel safety
    /// The client is closed from the first poll on; dropping the future only gives up the report, and another call
    /// finishes the work.
    pub async fn shutdown(&self, within: Duration) -> Result<(), ShutdownError> {
        self.handle.engine.shutdown(within, false).await
    }

    /// As [`shutdown`](LockClient::shutdown), but what is held is left to run out with its lease.
    ///
    /// # Errors
    /// [`ShutdownError`] lists the locks whose release had begun before and was not confirmed `within`.
    ///
    /// # Cancel safety
    /// As [`shutdown`](LockClient::shutdown).
    pub async fn shutdown_keeping_holds(&self, within: Duration) -> Result<(), ShutdownError> {
        self.handle.engine.shutdown(within, true).await
    }
}

impl std::fmt::Debug for LockClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockClient").field("id", &self.id()).finish_non_exhaustive()
    }
}
