//! Public troubles with waiting, time-outs and cancellation, as tests.
#![allow(missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::dice::Dice;
use common::proxy::Mode;
use common::{Monitor, Proxy, TestServer, eventually, long};
use redisson_lock::{Error, HoldEnd, LockClient, LostReason, Owner};

const MS: Duration = Duration::from_millis(1);
/// What a call may take longer than it was told to, on a machine that is busy with other tests.
const SLACK: Duration = Duration::from_millis(700);

async fn connect(url: &str) -> LockClient {
    LockClient::connect(url).await.unwrap()
}

/// What was sent about locks. Scripts may still be loaded in the background when a client is connected.
async fn sent(monitor: &Monitor) -> Vec<String> {
    monitor.sent().await.into_iter().filter(|name| !["SCRIPT", "CLIENT"].contains(&name.as_str())).collect()
}

// T44
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_at_a_frozen_server_ends_in_time_and_the_client_works_when_it_is_back() {
    let mut server = TestServer::own().await;
    let client = connect(server.url()).await;
    let lock = client.get_lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.freeze();
    let start = Instant::now();
    let frozen = lock.try_lock_for(500 * MS).await;
    let took = start.elapsed();
    server.thaw();
    assert!(matches!(frozen, Err(Error::Timeout { .. })), "{frozen:?}");
    assert!(took >= 500 * MS && took < 500 * MS + SLACK, "{took:?}");
    let guard = lock.try_lock_for(Duration::from_secs(5)).await.unwrap().expect("nobody holds it");
    assert_eq!(server.probe().await.count("k").await, 1);
    guard.unlock().await.unwrap();
}

// T44
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_at_a_killed_server_ends_in_time_and_the_client_works_after_its_restart() {
    let mut server = TestServer::own().await;
    let client = connect(server.url()).await;
    let lock = client.get_lock("k");
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.kill9();
    for _ in 0..2 {
        let start = Instant::now();
        let down = lock.try_lock_for(500 * MS).await;
        assert!(matches!(down, Err(Error::Timeout { .. } | Error::Connection { .. })), "{down:?}");
        assert!(start.elapsed() < 500 * MS + SLACK, "{:?}", start.elapsed());
    }
    server.restart_empty().await;
    let guard = lock.try_lock_for(Duration::from_secs(5)).await.unwrap().expect("nobody holds it");
    guard.unlock().await.unwrap();
}

// T44
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_began_before_the_outage_gets_the_lock_after_it() {
    let mut server = TestServer::own().await;
    let client = connect(server.url()).await;
    let guard = client.get_lock("k").with_lease(Duration::from_secs(60)).lock().await.unwrap();
    let waiter = tokio::spawn({
        let lock = client.get_lock("k");
        async move { lock.try_lock_for(Duration::from_secs(20)).await }
    });
    eventually(Duration::from_secs(2), "it waits", || async { client.stats().waiting == 1 }).await;
    server.kill9();
    server.restart_empty().await;
    drop(guard);
    let next = tokio::time::timeout(Duration::from_secs(5), waiter).await.expect("soon").unwrap().unwrap();
    assert_eq!(server.probe().await.count("k").await, 1);
    next.expect("nobody holds it").unlock().await.unwrap();
}

// T45
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_zero_is_one_attempt_without_a_subscription() {
    let server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let guard = a.get_lock("k").lock().await.unwrap();
    let lock = b.get_lock("k");
    assert!(lock.try_lock_for(Duration::ZERO).await.unwrap().is_none());
    let monitor = Monitor::start(server.port()).await;
    for _ in 0..10 {
        assert!(lock.try_lock_for(Duration::ZERO).await.unwrap().is_none());
    }
    assert_eq!(sent(&monitor).await, ["EVALSHA"; 10]);
    guard.unlock().await.unwrap();
}

// T45
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_zero_at_a_frozen_server_ends_with_the_command_timeout() {
    let mut server = TestServer::own().await;
    let a = connect(server.url()).await;
    let b = LockClient::builder().url(server.url()).command_timeout(300 * MS).connect().await.unwrap();
    let guard = a.get_lock("k").lock().await.unwrap();
    let lock = b.get_lock("k");
    server.freeze();
    for _ in 0..2 {
        let start = Instant::now();
        let frozen = lock.try_lock_for(Duration::ZERO).await;
        assert!(matches!(frozen, Err(Error::Timeout { .. } | Error::Connection { .. })), "{frozen:?}");
        assert!(start.elapsed() < 300 * MS + SLACK, "{:?}", start.elapsed());
    }
    server.thaw();
    guard.unlock().await.unwrap();
    let probe = server.probe().await;
    eventually(Duration::from_secs(5), "what was sent to the frozen server is taken back", || async {
        !probe.exists("k").await && b.stats().doubtful == 0
    })
    .await;
}

// T46
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_during_subscribe_is_a_none_or_a_timeout() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let (a, b) = (connect(server.url()).await, connect(&proxy.url()).await);
    let guard = a.get_lock("k").lock().await.unwrap();
    proxy.set(Mode::Delay(5 * MS));
    let (mut none, mut timeout) = (0, 0);
    for round in 0..if long() { 2_000 } else { 200 } {
        let wait = MS * (1 + round % 40);
        let start = Instant::now();
        match b.get_lock("k").try_lock_for(wait).await {
            Ok(None) => none += 1,
            Err(Error::Timeout { .. }) => timeout += 1,
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() >= wait && start.elapsed() < wait + SLACK, "{wait:?}: {:?}", start.elapsed());
    }
    assert!(none > 0 && timeout > 0, "{none} {timeout}");
    guard.unlock().await.unwrap();
    let got = b.get_lock("k").try_lock_for(Duration::from_secs(5)).await.unwrap();
    got.expect("free").unlock().await.unwrap();
}

// T50
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_never_leaves_its_answer_to_another() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    // Three locks with hold counts 1, 2 and 3, and one that nobody holds.
    let owner = Owner::new();
    let mut guards = Vec::new();
    let locks: Vec<_> = (0..=3).map(|n| client.get_lock(format!("known:{n}")).with_owner(owner)).collect();
    for (n, lock) in locks.iter().enumerate() {
        for _ in 0..n {
            guards.push(lock.lock().await.unwrap());
        }
    }
    let mut dice = Dice(50);
    for round in 0..if long() { 10_000 } else { 2_000 } {
        let n = dice.below(4);
        let lock = &locks[n as usize];
        let patience = Duration::from_micros(dice.below(400));
        let (kind, other) = (dice.below(3), client.get_lock(format!("any:{}", dice.below(5))));
        let cancelled = async {
            match kind {
                0 => drop(lock.hold_count().await),
                1 => drop(lock.remaining_lease().await),
                _ => drop(other.lock().await),
            }
        };
        let _ = tokio::time::timeout(patience, cancelled).await;
        assert_eq!(lock.hold_count().await.unwrap(), n, "round {round}");
        assert_eq!(lock.is_locked().await.unwrap(), n > 0, "round {round}");
        assert_eq!(lock.remaining_lease().await.unwrap().is_some(), n > 0, "round {round}");
        let info = lock.inspect().await.unwrap();
        assert_eq!(info.holders.iter().map(|h| h.count).sum::<u64>(), n, "round {round}");
    }
    drop(guards);
    let probe = server.probe().await;
    eventually(Duration::from_secs(3), "no key is left", || async { probe.dbsize().await == 0 }).await;
}

// T51
#[tokio::test(flavor = "multi_thread")]
async fn an_unlock_whose_future_is_dropped_still_releases() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let probe = server.probe().await;
    let client = connect(&proxy.url()).await;
    proxy.set(Mode::Delay(MS));
    let mut dice = Dice(51);
    let mut dropped = 0;
    for n in 0..if long() { 1_000 } else { 100 } {
        let key = format!("k:{n}");
        let guard = client.get_lock(&key).lock().await.unwrap();
        let patience = Duration::from_micros(dice.below(3_000));
        dropped += u32::from(tokio::time::timeout(patience, guard.unlock()).await.is_err());
    }
    // Not even polled.
    drop(client.get_lock("k:unpolled").lock().await.unwrap().unlock());
    assert!(dropped > 0, "no unlock was cut short");
    // Far below the lease of 30 s.
    eventually(Duration::from_secs(3), "all are released", || async { probe.dbsize().await == 0 }).await;
    eventually(Duration::from_secs(3), "nothing is held", || async { client.stats().held == 0 }).await;
}

// T51: the same for a forgotten hold, which can be tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_guardless_unlock_that_was_cut_short_releases_or_can_be_tried_again() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let probe = server.probe().await;
    let client = connect(&proxy.url()).await;
    proxy.set(Mode::Delay(MS));
    let mut dice = Dice(52);
    for n in 0..50 {
        let lock = client.get_lock(format!("k:{n}")).with_owner(Owner::new());
        lock.lock().await.unwrap().forget();
        let cut = tokio::time::timeout(Duration::from_micros(dice.below(2_000)), lock.unlock()).await;
        if cut.is_err() {
            // Ok if the first was not polled, else there is nothing to release any more.
            assert!(matches!(lock.unlock().await, Ok(()) | Err(Error::NotHeld { .. })));
        }
        eventually(Duration::from_secs(2), "released", || async { !probe.exists(lock.name()).await }).await;
    }
}

// T53
#[test]
fn dropping_a_guard_inside_a_runtime_does_not_block_it() {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let one_worker = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for runtime in [current, one_worker] {
        let task = async {
            let mut server = TestServer::own().await;
            let client = connect(server.url()).await;
            let guard = client.get_lock("k").lock().await.unwrap();
            // A drop that waited for an answer would wait for ever.
            server.freeze();
            let start = Instant::now();
            drop(guard);
            let took = start.elapsed();
            server.thaw();
            assert!(took < 200 * MS, "{took:?}");
            let probe = server.probe().await;
            eventually(Duration::from_secs(5), "released", || async { !probe.exists("k").await }).await;
        };
        runtime.block_on(async { tokio::spawn(task).await.unwrap() });
    }
}

// T54
#[tokio::test(flavor = "multi_thread")]
async fn held_and_down_are_told_apart() {
    let mut server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let _guard = a.get_lock("k").lock().await.unwrap();
    let lock = b.get_lock("k");
    assert!(lock.try_lock_for(200 * MS).await.unwrap().is_none());
    assert!(lock.try_lock().await.unwrap().is_none());
    server.kill9();
    assert!(matches!(lock.try_lock_for(200 * MS).await, Err(Error::Timeout { .. } | Error::Connection { .. })));
    assert!(matches!(lock.try_lock().await, Err(Error::Timeout { .. } | Error::Connection { .. })));
}

// T54
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_does_not_limit_the_wait_nor_the_wait_the_lease() {
    let server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let probe = server.probe().await;
    let first = a.get_lock("k").with_lease(1_000 * MS).lock().await.unwrap();
    // A wait longer than its lease ...
    let second = b.get_lock("k").with_lease(400 * MS).try_lock_for(Duration::from_secs(10)).await.unwrap();
    assert!(first.is_lost());
    second.expect("after the first lease").unlock().await.unwrap();
    // ... and a lease longer than its wait.
    let third = b.get_lock("k").with_lease(Duration::from_secs(10)).try_lock_for(200 * MS).await.unwrap();
    let third = third.expect("free");
    assert!(probe.pttl("k").await > 8_000);
    third.unlock().await.unwrap();
}

// T55
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_releases_what_is_held_and_tells_every_waiter() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (client, other) = (
        LockClient::builder().url(server.url()).watchdog_timeout(600 * MS).connect().await.unwrap(),
        connect(server.url()).await,
    );
    let theirs = other.get_lock("theirs").lock().await.unwrap();
    let mut held = Vec::new();
    for n in 0..10 {
        held.push(client.get_lock(format!("held:{n}")).lock().await.unwrap());
    }
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..10 {
        // Half of them behind another client, half behind a hold of this one.
        let lock = client.get_lock(if n % 2 == 0 { "theirs" } else { "held:0" });
        waiters.spawn(async move { lock.lock().await.map(drop) });
    }
    eventually(Duration::from_secs(2), "ten wait", || async { client.stats().waiting == 10 }).await;
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(1), waiters.join_all()).await.expect("told at once");
    assert!(told.iter().all(|end| matches!(end, Err(Error::Closed { .. }))), "{told:?}");
    for n in 0..10 {
        assert!(!probe.exists(&format!("held:{n}")).await);
    }
    for guard in held {
        assert_eq!(guard.lost().await, HoldEnd::Lost(LostReason::Closed));
    }
    // A second call returns the same, and new calls are refused.
    tokio::time::timeout(Duration::from_secs(1), client.shutdown(Duration::from_secs(5))).await.unwrap().unwrap();
    assert!(matches!(client.get_lock("new").lock().await, Err(Error::Closed { .. })));
    assert!(matches!(client.get_lock("new").is_locked().await, Err(Error::Closed { .. })));
    // Nothing of it goes on: the other client is the only one left, with three connections.
    eventually(Duration::from_secs(2), "its connections are closed", || async { probe.others().await.len() == 3 })
        .await;
    assert_eq!(probe.count("theirs").await, 1);
    theirs.unlock().await.unwrap();
}

// T55
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_can_leave_the_holds_to_run_out() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::builder().url(server.url()).watchdog_timeout(1_500 * MS).connect().await.unwrap();
    let guard = client.get_lock("k").lock().await.unwrap();
    client.shutdown_keeping_holds(Duration::from_secs(5)).await.unwrap();
    assert_eq!(guard.lost().await, HoldEnd::Lost(LostReason::Closed));
    assert_eq!(probe.count("k").await, 1);
    drop(guard);
    eventually(Duration::from_secs(3), "its lease ends", || async { !probe.exists("k").await }).await;
}

// T55
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_at_a_frozen_server_ends_in_time_and_names_what_is_not_released() {
    let mut server = TestServer::own().await;
    let client = connect(server.url()).await;
    let _guard = client.get_lock("k").lock().await.unwrap();
    server.freeze();
    let start = Instant::now();
    let error = client.shutdown(500 * MS).await.unwrap_err();
    assert!(start.elapsed() < 500 * MS + SLACK, "{:?}", start.elapsed());
    assert_eq!(error.unconfirmed.iter().map(|lock| &**lock).collect::<Vec<_>>(), ["k"]);
    let again = client.shutdown(500 * MS).await.unwrap_err();
    assert_eq!(again.unconfirmed, error.unconfirmed);
    server.thaw();
}
