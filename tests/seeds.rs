//! The two tests that this crate grew from, and the daily report.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{TestServer, unique_key};
use redisson_lock::{Error, LockClient, NotHeld, Owner};

#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_racers_for_a_five_second_lock_exactly_one_wins() {
    let server = TestServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let key = unique_key("race");
    let racers: Vec<_> = (0..20)
        .map(|_| {
            let lock = client.get_lock(&key).with_lease(Duration::from_secs(5));
            tokio::spawn(async move { lock.try_lock().await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for racer in racers {
        guards.extend(racer.await.unwrap());
    }
    assert_eq!(guards.len(), 1);
    assert_eq!(server.probe().await.count(&key).await, 1);
}

#[tokio::test]
async fn a_wrong_owner_cannot_release_and_the_right_one_can() {
    let server = TestServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock(unique_key("owner"));
    let (right, wrong) = (Owner::new(), Owner::new());
    assert_eq!(lock.with_owner(right).lock().await.unwrap().forget(), right);
    match lock.with_owner(wrong).unlock().await {
        Err(Error::NotHeld { owner, why: NotHeld::Never, .. }) => assert_eq!(owner, wrong),
        other => panic!("{other:?}"),
    }
    assert_eq!(probe.count(lock.name()).await, 1);
    lock.with_owner(right).unlock().await.unwrap();
    assert!(!probe.exists(lock.name()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_daily_reports_one_runs_and_two_skip() {
    let server = TestServer::start().await;
    let key = unique_key("daily-report");
    let (ran, skipped) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let mut pods = Vec::new();
    for _ in 0..3 {
        let client = LockClient::connect(server.url()).await.unwrap();
        let (ran, skipped, barrier, key) = (ran.clone(), skipped.clone(), barrier.clone(), key.clone());
        pods.push(tokio::spawn(async move {
            let report = client.get_lock(&key).try_lock_for(Duration::ZERO).await.unwrap();
            let counter = if report.is_some() { &ran } else { &skipped };
            counter.fetch_add(1, Ordering::SeqCst);
            // All have asked before the report is over.
            barrier.wait().await;
            drop(report);
        }));
    }
    for pod in pods {
        pod.await.unwrap();
    }
    assert_eq!((ran.load(Ordering::SeqCst), skipped.load(Ordering::SeqCst)), (1, 2));
}
