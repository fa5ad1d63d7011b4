//! Memory comes back. A process of its own, so that nothing else of the tests is counted.
#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{TestServer, eventually, long};
use redisson_lock::LockClient;

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Asks for locks and drops the futures after 0 to 4 ms; half of them wait for a lock that is held.
async fn storm(client: &LockClient, acquires: u64) {
    let held = client.get_lock("held").non_reentrant().lock().await.unwrap();
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let client = client.clone();
            tokio::spawn(async move {
                for turn in 0..acquires / 8 {
                    let key = if turn % 2 == 0 { "held".to_owned() } else { format!("own:{worker}:{turn}") };
                    let patience = Duration::from_micros((turn * 7_919 + worker * 104_729) % 4_000);
                    let _ = tokio::time::timeout(patience, client.get_lock(key).lock()).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    held.unlock().await.unwrap();
    eventually(Duration::from_secs(5), "everything is released", || async {
        let stats = client.stats();
        (stats.held, stats.waiting, stats.doubtful) == (0, 0, 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_comes_back_after_a_storm_of_dropped_acquires() {
    let acquires = if long() { 20_000 } else { 4_000 };
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    // The allocator and every table have their size after these.
    storm(&client, acquires).await;
    storm(&client, acquires).await;
    let before = resident();
    storm(&client, acquires).await;
    storm(&client, acquires).await;
    let grown = resident().saturating_sub(before);
    // A leak of 500 bytes for each acquire would be nearly eight times this.
    let most = acquires / 8;
    assert!(grown < most, "{grown} KiB more after {} acquires (at most {most})", 2 * acquires);
}
