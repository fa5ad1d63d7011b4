//! What every test needs: a real server of its own, an oracle that looks from outside, a proxy that breaks things.
//! Nothing here goes through the crate under test.
#![allow(dead_code, missing_docs, unreachable_pub, unused_imports)] // Each test file uses a part.

pub mod child;
pub mod dice;
pub mod docker;
pub mod monitor;
pub mod probe;
pub mod proxy;
pub mod server;
pub mod trace;
pub mod wait;

pub use monitor::{Monitor, Seen};
pub use probe::{Probe, Reply};
pub use proxy::{Fault, Mode, Proxy};
pub use server::TestServer;
pub use wait::{eventually, unique_key};

/// Whether the long cases run whole (`scripts/test --long`).
pub fn long() -> bool {
    std::env::var_os("REDISSON_LOCK_LONG").is_some_and(|v| v == "1")
}
