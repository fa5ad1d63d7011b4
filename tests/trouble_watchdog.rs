//! Public troubles with lock watchdogs, as tests.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::dice::Dice;
use common::proxy::{Mode, contains};
use common::{Proxy, TestServer, eventually, long};
use redisson_lock::{ConnectErrorKind, Error, HoldEnd, LockClient, LostReason};

const MS: Duration = Duration::from_millis(1);

async fn watched(url: &str, timeout: Duration) -> LockClient {
    LockClient::builder().url(url).watchdog_timeout(timeout).connect().await.unwrap()
}

/// A proxy on a thread of its own, for tests that block their runtime. The thread ends with the process.
fn proxy_apart(target: u16) -> Proxy {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            sender.send(Proxy::start(target).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().unwrap()
}

// T14
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_renewed_after_many_locks_unlocks_and_cancels() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), 300 * MS).await;
    let mut dice = Dice(14);
    for n in 0..if long() { 5_000 } else { 600 } {
        let lock = client.get_lock(format!("k:{}", n % 50));
        if dice.below(2) == 0 {
            lock.lock().await.unwrap().unlock().await.unwrap();
        } else {
            let patience = Duration::from_micros(dice.below(2_000));
            let taken = tokio::time::timeout(patience, async { lock.lock().await.map(drop) }).await;
            assert!(matches!(taken, Err(_) | Ok(Ok(()))), "{taken:?}");
        }
    }
    // Behind whatever was dropped on its way.
    client.get_lock("last").lock().await.unwrap().unlock().await.unwrap();
    eventually(2 * Duration::from_secs(1), "no key is left", || async { probe.dbsize().await == 0 }).await;
    eventually(2 * Duration::from_secs(1), "nothing is doubtful", || async { client.stats().doubtful == 0 }).await;
    assert_eq!((client.stats().held, client.stats().waiting), (0, 0));
    // Longer than a lease, with ten renewal periods.
    let calls = probe.calls("evalsha").await;
    tokio::time::sleep(1_000 * MS).await;
    assert_eq!(probe.calls("evalsha").await, calls);
    assert_eq!(probe.dbsize().await, 0);
}

// T17
#[tokio::test(flavor = "multi_thread")]
async fn renewal_goes_on_after_a_connection_that_was_dead_at_a_tick() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let probe = server.probe().await;
    let client = watched(&proxy.url(), 3_000 * MS).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    let start = Instant::now();
    // The tick is after 1 s.
    tokio::time::sleep(700 * MS).await;
    proxy.set(Mode::Stall);
    tokio::time::sleep(1_000 * MS).await;
    proxy.set(Mode::Pass);
    assert!(client.stats().late >= 1, "no renewal failed: the test tests nothing");
    eventually(800 * MS, "renewed sooner than a whole period later", || async { probe.pttl("k").await > 2_500 }).await;
    while start.elapsed() < Duration::from_secs(if long() { 12 } else { 6 }) {
        assert!(probe.pttl("k").await > 500);
        assert!(!guard.is_lost());
        tokio::time::sleep(50 * MS).await;
    }
    guard.unlock().await.unwrap();
}

// T18, scaled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_holds_are_renewed_in_time_though_every_worker_is_blocked_and_the_network_slow() {
    let server = TestServer::own().await;
    let proxy = proxy_apart(server.port());
    let holds: u32 = if long() { 5_000 } else { 500 };
    let watch = Duration::from_secs(if long() { 30 } else { 6 });
    let client = watched(&proxy.url(), watch).await;
    let mut guards = Vec::new();
    for n in 0..holds {
        guards.push(client.get_lock(format!("k:{n}")).lock().await.unwrap());
    }
    proxy.set(Mode::Delay(50 * MS));
    // Looks from outside, on a thread and a runtime of its own.
    let (stop, port) = (Arc::new(AtomicBool::new(false)), server.port());
    let looking = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let probe = common::Probe::connect(port).await;
                let mut least = i64::MAX;
                while !stop.load(SeqCst) {
                    for n in 0..holds {
                        least = least.min(probe.pttl(&format!("k:{n}")).await);
                    }
                }
                least
            })
        }
    });
    // Blocks every worker of this runtime, this one too.
    let time = if long() { Duration::from_secs(600) } else { Duration::from_secs(5) };
    let blocked: Vec<_> = (0..2).map(|_| tokio::spawn(async move { std::thread::sleep(time) })).collect();
    std::thread::sleep(time);
    stop.store(true, SeqCst);
    let least = looking.join().unwrap();
    for task in blocked {
        task.await.unwrap();
    }
    assert!(least > watch.as_millis() as i64 / 3, "least TTL seen: {least} ms");
    assert!(client.stats().renewals >= u64::from(holds), "{:?}", client.stats());
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    proxy.set(Mode::Pass);
    client.shutdown(Duration::from_secs(10)).await.unwrap();
    assert_eq!(server.probe().await.dbsize().await, 0);
}

// T20
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_panics_or_is_aborted_releases() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), Duration::from_secs(30)).await;
    let lock = client.get_lock("panics");
    let panics = tokio::spawn(async move {
        let _guard = lock.lock().await.unwrap();
        std::panic::resume_unwind(Box::new("as if it panicked"));
    });
    assert!(panics.await.unwrap_err().is_panic());
    eventually(Duration::from_secs(2), "released by the panic", || async { !probe.exists("panics").await }).await;

    let lock = client.get_lock("aborted");
    let aborted = tokio::spawn(async move {
        let _guard = lock.lock().await.unwrap();
        std::future::pending::<()>().await;
    });
    eventually(Duration::from_secs(2), "held", || async { probe.exists("aborted").await }).await;
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    eventually(Duration::from_secs(2), "released by the abort", || async { !probe.exists("aborted").await }).await;
    assert_eq!(client.stats().held, 0);
}

// T20
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_leaked_holds_no_longer_than_its_maximum_and_one_lease() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), 600 * MS).await;
    let max = 1_200 * MS;
    let start = Instant::now();
    std::mem::forget(client.get_lock("forgotten").with_max_hold(max).lock().await.unwrap());
    Box::leak(Box::new(client.get_lock("leaked").with_max_hold(max).lock().await.unwrap()));
    client.get_lock("given up").with_max_hold(max).lock().await.unwrap().forget();
    for key in ["forgotten", "leaked", "given up"] {
        let within = Duration::from_secs(4);
        eventually(within, "it ran out", || async { !probe.exists(key).await }).await;
        assert!(start.elapsed() >= max, "{key} after {:?}", start.elapsed());
        let next = client.get_lock(key).with_owner(redisson_lock::Owner::new()).try_lock().await.unwrap();
        next.expect("free again").unlock().await.unwrap();
    }
}

// T23
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_one_call_does_not_leak_into_another() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), Duration::from_secs(20)).await;
    let lock = client.get_lock("k");
    let hour = lock.with_lease(Duration::from_secs(3_600));
    hour.lock().await.unwrap().unlock().await.unwrap();
    let guard = lock.lock().await.unwrap();
    let ttl = probe.pttl("k").await;
    assert!((1..=20_000).contains(&ttl), "{ttl}");
    guard.unlock().await.unwrap();

    // Two tasks with leases of their own from one object.
    let mut tasks = tokio::task::JoinSet::new();
    for lease in [5_u64, 50] {
        let lock = lock.with_lease(Duration::from_secs(lease));
        let port = server.port();
        tasks.spawn(async move {
            let guard = lock.lock().await.unwrap();
            let ttl = common::Probe::connect(port).await.pttl("k").await;
            assert!(ttl <= lease as i64 * 1_000 && ttl > lease as i64 * 1_000 - 3_000, "{ttl} of {lease} s");
            guard.unlock().await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

// T23
#[tokio::test(flavor = "multi_thread")]
async fn neither_re_entry_nor_a_partial_unlock_shortens_the_lease() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), Duration::from_secs(3)).await;
    let lock = client.get_lock("k");
    let outer = lock.with_lease(Duration::from_secs(60)).lock().await.unwrap();
    for lease in [None, Some(10 * MS), Some(Duration::from_secs(10))] {
        let handle = lease.map_or(lock.clone(), |lease| lock.with_lease(lease));
        let inner = handle.lock().await.unwrap();
        assert_eq!(probe.count("k").await, 2);
        assert!(probe.pttl("k").await > 50_000);
        inner.unlock().await.unwrap();
        assert_eq!(probe.count("k").await, 1);
        assert!(probe.pttl("k").await > 50_000);
    }
    assert!(outer.remaining() > Duration::from_secs(50));
    outer.unlock().await.unwrap();
    assert!(!probe.exists("k").await);
}

// T25
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_counts_from_the_attempt_that_was_granted() {
    let server = TestServer::own().await;
    let (a, b) =
        (watched(server.url(), Duration::from_secs(30)).await, LockClient::connect(server.url()).await.unwrap());
    let first = a.get_lock("k").lock().await.unwrap();
    let waiter = tokio::spawn({
        let lock = b.get_lock("k").with_lease(1_000 * MS);
        async move {
            let guard = lock.try_lock_for(Duration::from_secs(10)).await.unwrap().expect("it became free");
            (guard.remaining(), guard)
        }
    });
    // Longer than the waiter's lease.
    tokio::time::sleep(1_500 * MS).await;
    assert!(!waiter.is_finished());
    first.unlock().await.unwrap();
    let (remaining, guard) = waiter.await.unwrap();
    assert!(remaining > 500 * MS && remaining <= 1_000 * MS, "{remaining:?}");
    guard.unlock().await.unwrap();
}

// T25
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_ran_out_on_its_way_is_reported_and_not_handed_out() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let probe = server.probe().await;
    let client = LockClient::connect(proxy.url()).await.unwrap();
    proxy.set(Mode::Delay(300 * MS));
    let lease = 500 * MS;
    for _ in 0..2 {
        match client.get_lock("k").with_lease(lease).lock().await {
            Err(Error::ExpiredBeforeUse { lease: told, .. }) => assert_eq!(told, lease),
            other => panic!("{other:?}"),
        }
        eventually(Duration::from_secs(2), "nothing is left", || async { !probe.exists("k").await }).await;
    }
    assert_eq!(client.stats().held, 0);
}

// T26
#[tokio::test(flavor = "multi_thread")]
async fn a_tiny_watchdog_timeout_is_refused() {
    let server = TestServer::own().await;
    for ms in [0, 1, 2, 3, 10, 199] {
        let error = LockClient::builder().url(server.url()).watchdog_timeout(MS * ms).connect().await.unwrap_err();
        assert_eq!(error.kind, ConnectErrorKind::Config);
    }
}

// T26
#[tokio::test(flavor = "multi_thread")]
async fn tiny_leases_neither_panic_nor_spin() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), 200 * MS).await;
    for ms in [1, 2, 3, 10] {
        match client.get_lock(format!("k:{ms}")).with_lease(MS * ms).lock().await {
            Ok(guard) => {
                let end =
                    tokio::time::timeout(Duration::from_secs(2), guard.lost()).await.expect("told at its deadline");
                assert_eq!(end, HoldEnd::Lost(LostReason::Expired));
            }
            Err(Error::ExpiredBeforeUse { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    eventually(Duration::from_secs(2), "all have run out", || async { probe.dbsize().await == 0 }).await;
    let calls = probe.calls("evalsha").await;
    tokio::time::sleep(300 * MS).await;
    assert_eq!(probe.calls("evalsha").await, calls);
    assert_eq!(client.stats().renewals, 0);
}

// T27
#[tokio::test(flavor = "multi_thread")]
async fn when_every_renewal_fails_the_hold_is_lost_once_at_its_deadline_and_the_client_lives_on() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), 900 * MS).await;
    let start = Instant::now();
    let guard = client.get_lock("k").lock().await.unwrap();
    probe.cmd(&["ACL", "SETUSER", "default", "-pexpire"]).await;
    let end = tokio::time::timeout(Duration::from_secs(2), guard.lost()).await.expect("told at the deadline");
    assert_eq!(end, HoldEnd::Lost(LostReason::Expired));
    assert!(start.elapsed() >= 800 * MS, "given up after {:?}, with lease left", start.elapsed());
    assert!(start.elapsed() < 1_200 * MS, "told only after {:?}", start.elapsed());
    assert!(client.stats().late >= 2, "{:?}", client.stats());
    assert_eq!(client.stats().lost, 1);
    assert!(matches!(guard.unlock().await, Err(Error::Lost(_))));

    probe.cmd(&["ACL", "SETUSER", "default", "+pexpire"]).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    let renewals = client.stats().renewals;
    eventually(Duration::from_secs(2), "the watchdog renews again", || async {
        client.stats().renewals > renewals + 2
    })
    .await;
    assert_eq!(client.stats().lost, 1);
    guard.unlock().await.unwrap();
}

// T28
#[tokio::test(flavor = "multi_thread")]
async fn one_renewal_that_failed_costs_nothing() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), 3_000 * MS).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    probe.cmd(&["ACL", "SETUSER", "default", "-pexpire"]).await;
    eventually(1_500 * MS, "a renewal failed", || async { client.stats().late >= 1 }).await;
    probe.cmd(&["ACL", "SETUSER", "default", "+pexpire"]).await;
    assert!(!guard.is_lost());
    // Long before the next period.
    eventually(700 * MS, "tried again soon", || async { probe.pttl("k").await > 2_700 }).await;
    assert!(guard.run(tokio::time::sleep(3_500 * MS)).await.is_ok());
    guard.unlock().await.unwrap();
    assert_eq!(client.stats().lost, 0);
}

// T28
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_reply_is_lost_with_its_connection_costs_nothing() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let probe = server.probe().await;
    let client = watched(&proxy.url(), 900 * MS).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    for lost in 1..=3 {
        proxy.lose_reply_of(|chunk| contains(chunk, "EVALSHA"));
        eventually(Duration::from_secs(2), "a renewal's reply is lost", || async { proxy.lost() == lost }).await;
        let renewals = client.stats().renewals;
        eventually(Duration::from_secs(2), "the next one arrives", || async { client.stats().renewals > renewals })
            .await;
        assert!(!guard.is_lost());
        assert!(probe.pttl("k").await > 0);
    }
    guard.unlock().await.unwrap();
    assert!(!probe.exists("k").await);
}
