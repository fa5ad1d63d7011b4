//! Distributed reentrant locks on Redis for tokio programs, compatible on the wire with Java's
//! [Redisson](https://redisson.pro): same keys, same hash fields, same channels, so that a Rust service and a Java service
//! exclude and wake each other.
//!
//! ```no_run
//! use std::time::Duration;
//! use redisson_lock::LockClient;
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::connect("redis://127.0.0.1:6379").await?;
//! let lock = client.get_lock("order:42");
//!
//! let guard = lock.lock().await?; // waits as long as it takes; renewed by the watchdog
//! guard.unlock().await?; // says how it ended; dropping releases too, in the background
//!
//! if let Some(guard) = lock.try_lock().await? {
//!     // one attempt, never waits
//!     guard.unlock().await?;
//! }
//! // Java: tryLock(100, 10, SECONDS)
//! let ten = Duration::from_secs(10);
//! if let Some(guard) = lock.with_lease(ten).try_lock_for(Duration::from_secs(100)).await? {
//!     guard.unlock().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! While a [`LockGuard`] says that it is not lost, the server has granted the lock to nobody else; when its key is removed by
//! force (an operator, a flush, a restart), the guard is told within one renewal period. Nothing is left behind: any future
//! may be dropped at any moment, any guard on any thread. Every operation may be sent again without harm. A waiter is woken
//! by one message, and looks again by itself when a message may have been lost. `docs/guarantees.md` says how each promise
//! is kept and where it ends; a lock alone is no fence against a holder that does not look.
//!
//! # Where to start
//! [`LockClient`] connects, [`RLock`] has the verbs and the table for users of Redisson, [`LockGuard`] is one hold,
//! [`Owner`] says who holds, [`Error`] lists what a caller can decide on.

// Face.
mod acquire;
mod builder;
mod client;
mod guard;
mod lock;
// Machinery.
mod engine;
// Wire.
mod script;
mod wire;
// Values.
mod clock;
mod config;
mod error;
mod info;
mod lease;
mod names;
mod owner;
mod stats;

pub use builder::LockClientBuilder;
pub use client::LockClient;
pub use engine::hold::Lost;
pub use error::{
    ConnectError, ConnectErrorKind, Error, HoldEnd, InvalidDuration, InvalidName, LockLost, LostReason, NotHeld,
    Refused, ShutdownError,
};
pub use guard::{LockGuard, NestedHold};
pub use info::{LockHolder, LockInfo};
pub use lock::RLock;
pub use owner::Owner;
pub use stats::Stats;
