//! A server in a container, as testcontainers starts it: the way the other tests go where no Redis is installed.
#![allow(missing_docs)]

mod common;

use std::io::Write;

use common::Probe;
use common::docker::Container;
use redisson_lock::LockClient;

/// Skipped, loudly, where no container can be had; `REDISSON_LOCK_REQUIRE_DOCKER=1` makes that a failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_works_on_a_server_in_a_container() {
    let required = std::env::var("REDISSON_LOCK_REQUIRE_DOCKER").is_ok_and(|v| v == "1");
    let container = match Container::start().await {
        Ok(container) => container,
        Err(error) if required => panic!("no container: {error}"),
        Err(error) => {
            // Past the capture of test output: a skipped test must not look like one that passed.
            let _ = writeln!(std::io::stderr(), "SKIPPED: the container test: {}", error.replace('\n', " "));
            return;
        }
    };
    let probe = Probe::at(&container.url()).await;
    let client = LockClient::connect(container.url()).await.unwrap();
    let guard = client.get_lock("contained").lock().await.unwrap();
    assert_eq!(probe.count("contained").await, 1);
    guard.unlock().await.unwrap();
    assert!(!probe.exists("contained").await);
}
