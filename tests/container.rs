//! A server in a container, as testcontainers starts it.
#![allow(missing_docs)]

mod common;

use common::Probe;
use common::docker::Container;
use redisson_lock::LockClient;

/// Skipped, loudly, where no Docker engine answers; `REDISSON_LOCK_REQUIRE_DOCKER=1` makes that a failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_works_on_a_server_in_a_container() {
    let container = match Container::start().await {
        Ok(container) => container,
        Err(error) if std::env::var_os("REDISSON_LOCK_REQUIRE_DOCKER").is_some() => panic!("no container: {error}"),
        Err(error) => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIPPED: no container could be started ({error})");
            return;
        }
    };
    let probe = Probe::connect(container.port).await;
    let client = LockClient::connect(format!("redis://127.0.0.1:{}", container.port)).await.unwrap();
    let guard = client.get_lock("contained").lock().await.unwrap();
    assert_eq!(probe.count("contained").await, 1);
    guard.unlock().await.unwrap();
    assert!(!probe.exists("contained").await);
}
