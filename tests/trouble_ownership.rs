//! Public troubles with ownership, retries and double execution, as tests.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::child;
use common::proxy::{Mode, contains};
use common::{Monitor, Probe, Proxy, TestServer, eventually, long};
use redisson_lock::{ConnectErrorKind, Error, HoldEnd, LockClient, LostReason, NotHeld, Owner};

const MS: Duration = Duration::from_millis(1);

async fn connect(url: &str) -> LockClient {
    LockClient::connect(url).await.unwrap()
}

// T03
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_reply_was_swallowed_is_taken_back_and_others_get_the_lock() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let a = LockClient::builder().url(proxy.url()).command_timeout(300 * MS).connect().await.unwrap();
    let b = connect(server.url()).await;
    let probe = server.probe().await;
    let owner = Owner::new();
    let lock = a.get_lock("job").with_owner(owner);

    // The scripts are loaded.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let taken = probe.calls("hset").await;
    proxy.set(Mode::SwallowReplies);
    let failed = lock.try_lock().await;
    assert!(matches!(failed, Err(Error::Timeout { .. } | Error::Connection { .. })), "{failed:?}");
    assert_eq!(probe.calls("hset").await, taken + 1, "the acquire was not executed: the test tests nothing");
    proxy.set(Mode::Pass);
    proxy.reset_all();

    // Far below the lease of 30 s that the swallowed acquire left.
    let got = b.get_lock("job").try_lock_for(Duration::from_secs(10)).await.unwrap().expect("taken back in time");
    // The identity of the failed run does not re-enter anybody's hold.
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(probe.count("job").await, 1);
    got.unlock().await.unwrap();
    let again = lock.lock().await.unwrap();
    assert_eq!(probe.count("job").await, 1);
    again.unlock().await.unwrap();
    assert!(!probe.exists("job").await);
}

// T03
#[tokio::test(flavor = "multi_thread")]
async fn the_next_run_of_the_same_owner_after_an_ambiguous_acquire_counts_from_one() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let a = LockClient::builder().url(proxy.url()).command_timeout(300 * MS).connect().await.unwrap();
    let probe = server.probe().await;
    let lock = a.get_lock("job").with_owner(Owner::new());
    for _ in 0..3 {
        proxy.set(Mode::SwallowReplies);
        lock.try_lock().await.expect_err("its reply was swallowed");
        proxy.set(Mode::Pass);
        proxy.reset_all();
        let guard = lock.try_lock_for(Duration::from_secs(10)).await.unwrap().expect("the old attempt is taken back");
        assert_eq!(probe.count("job").await, 1);
        guard.unlock().await.unwrap();
        assert!(!probe.exists("job").await);
    }
    eventually(Duration::from_secs(5), "nothing is doubtful any more", || async { a.stats().doubtful == 0 }).await;
}

// T04
#[tokio::test(flavor = "multi_thread")]
async fn an_unlock_whose_reply_is_lost_is_ok_and_its_resend_does_not_disturb_the_next_owner() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let a = connect(&proxy.url()).await;
    let b = connect(server.url()).await;
    let probe = server.probe().await;
    for round in 1..=5 {
        let guard = a.get_lock("k").lock().await.unwrap();
        let waiter = tokio::spawn({
            let lock = b.get_lock("k");
            async move { lock.lock().await }
        });
        eventually(Duration::from_secs(5), "b listens", || async {
            probe.numsub("redisson_lock__channel:{k}").await == 1
        })
        .await;
        proxy.lose_reply_of(|chunk| contains(chunk, "redisson_lock__channel:{k}"));
        guard.unlock().await.unwrap();
        assert_eq!(proxy.lost(), round);
        let theirs = waiter.await.unwrap().unwrap();
        assert_eq!(probe.count("k").await, 1);
        assert!(probe.hgetall("k").await.keys().all(|field| field.starts_with(b.id())));
        theirs.unlock().await.unwrap();
    }
}

// T05, T06: there is no number of attempts and no latch here, so these are the extremes of what can be set.
#[tokio::test(flavor = "multi_thread")]
async fn settings_at_their_extremes_are_refused_or_work() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let builder = || LockClient::builder().url(server.url());
    let refused = [
        builder().command_timeout(Duration::ZERO),
        builder().connect_timeout(Duration::ZERO),
        builder().recheck_interval(Duration::ZERO),
        builder().undelivered_grant(Duration::ZERO),
        builder().watchdog_timeout(Duration::ZERO),
        builder().watchdog_timeout(Duration::MAX),
        builder().watchdog_batch_size(0),
        builder().watchdog_batch_size(usize::MAX),
    ];
    for settings in refused {
        let error = settings.connect().await.expect_err("out of bounds");
        assert_eq!(error.kind, ConnectErrorKind::Config, "{error}");
    }
    let longest = Duration::from_millis((1 << 53) - 1);
    let accepted = [
        builder().command_timeout(Duration::MAX),
        builder().connect_timeout(Duration::MAX),
        builder().recheck_interval(Duration::MAX),
        builder().undelivered_grant(Duration::MAX),
        builder().drain_timeout(Duration::MAX),
        builder().drain_timeout(Duration::ZERO),
        builder().outage_timeout(Duration::MAX),
        builder().outage_timeout(Duration::ZERO),
        builder().outage_timeout(None),
        builder().watchdog_timeout(longest),
        builder().watchdog_timeout(200 * MS),
        builder().watchdog_batch_size(1),
        builder().watchdog_batch_size(7_000),
        builder().recheck_interval(MS),
    ];
    for (n, settings) in accepted.into_iter().enumerate() {
        let client = tokio::time::timeout(Duration::from_secs(10), settings.connect()).await.unwrap().unwrap();
        let lock = client.get_lock(format!("extreme:{n}"));
        let work = async {
            let guard = lock.lock().await.unwrap();
            let nested = lock.lock().await.unwrap();
            assert_eq!(probe.count(lock.name()).await, 2);
            nested.unlock().await.unwrap();
            guard.unlock().await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(10), work).await.unwrap_or_else(|_| panic!("setting {n} hangs"));
        assert!(!probe.exists(lock.name()).await, "setting {n}");
        tokio::time::timeout(Duration::from_secs(10), client.shutdown(Duration::from_secs(5))).await.unwrap().unwrap();
    }
}

// T07
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_guard_taken_on_one_thread_unlocks_on_another() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let probe = server.probe().await;
    let lock = client.get_lock("moved");
    // To another task.
    let guard = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await.unwrap() }
    })
    .await
    .unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { guard.unlock().await });
    tasks.join_next().await.unwrap().unwrap().unwrap();
    assert!(!probe.exists("moved").await);
    // To a thread outside of the runtime, for certain another one.
    let (sender, receiver) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        let guard: redisson_lock::LockGuard = receiver.recv().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(guard.unlock())
    });
    sender.send(lock.lock().await.unwrap()).unwrap();
    tokio::task::spawn_blocking(move || other.join()).await.unwrap().unwrap().unwrap();
    assert!(!probe.exists("moved").await);
}

// T08
#[tokio::test]
async fn tasks_on_one_thread_exclude_each_other() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (lock, inside, most) = (client.get_lock("k"), inside.clone(), most.clone());
        tasks.spawn(async move {
            for _ in 0..20 {
                let guard = lock.lock().await.unwrap();
                most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::time::sleep(MS).await;
                inside.fetch_sub(1, SeqCst);
                guard.unlock().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(most.load(SeqCst), 1);
}

// T09
#[tokio::test(flavor = "multi_thread")]
async fn a_late_unlock_says_that_the_lease_ran_out_and_leaves_the_next_holder_alone() {
    let server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let probe = server.probe().await;
    let late = a.get_lock("k").with_lease(200 * MS).lock().await.unwrap();
    let next = b.get_lock("k").try_lock_for(Duration::from_secs(5)).await.unwrap().expect("after the lease");
    let before = probe.hgetall("k").await;
    match late.unlock().await {
        Err(Error::Lost(lost)) => assert_eq!(lost.reason, LostReason::Expired),
        other => panic!("{other:?}"),
    }
    assert_eq!(probe.hgetall("k").await, before);
    assert!(!next.is_lost());
    next.unlock().await.unwrap();
}

// T09, scaled: many tasks of which some work for longer than their lease.
#[tokio::test(flavor = "multi_thread")]
async fn among_many_tasks_that_overrun_their_lease_every_unlock_tells_the_truth() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let (on_time, late) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks = if long() { 1_000 } else { 24 };
    let mut set = tokio::task::JoinSet::new();
    for n in 0..tasks {
        let (lock, on_time, late) = (client.get_lock("k").with_lease(200 * MS), on_time.clone(), late.clone());
        set.spawn(async move {
            let guard = match lock.lock().await {
                Ok(guard) => guard,
                Err(Error::ExpiredBeforeUse { .. }) => return, // A machine that slept for 200 ms.
                Err(other) => panic!("{other:?}"),
            };
            let work = if n % 4 == 0 { 300 } else { 5 * (n % 4) };
            tokio::time::sleep(MS * work).await;
            let lost = guard.is_lost();
            match guard.unlock().await {
                Ok(()) => {
                    assert!(!lost, "Ok for a hold that was lost");
                    on_time.fetch_add(1, SeqCst);
                }
                Err(Error::Lost(l)) if l.reason == LostReason::Expired => drop(late.fetch_add(1, SeqCst)),
                // It ran out between the look and the server.
                Err(Error::NotHeld { why: NotHeld::Expired | NotHeld::TakenBy(_), .. }) => {
                    late.fetch_add(1, SeqCst);
                }
                other => panic!("{other:?}"),
            }
        });
    }
    while let Some(done) = set.join_next().await {
        done.unwrap();
    }
    assert!(late.load(SeqCst) >= tasks / 4 - 1, "late: {late:?}");
    assert!(on_time.load(SeqCst) >= tasks / 2, "on time: {on_time:?}");
    let probe = server.probe().await;
    eventually(Duration::from_secs(2), "no key is left", || async { !probe.exists("k").await }).await;
}

// T10
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_one_binary_have_ids_of_their_own_and_do_not_re_enter_each_other() {
    let server = TestServer::own().await;
    let settings = LockClient::builder().url(server.url()).label("same");
    let (a, b) = (settings.clone().connect().await.unwrap(), settings.connect().await.unwrap());
    assert_ne!(a.id(), b.id());
    let owner = Owner::new();
    let guard = a.get_lock("k").with_owner(owner).lock().await.unwrap();
    assert!(b.get_lock("k").with_owner(owner).try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
}

// T10
#[tokio::test(flavor = "multi_thread")]
async fn processes_of_one_binary_have_ids_of_their_own() {
    let server = TestServer::own().await;
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let process = child::spawn("child_that_says_its_id", server.url());
        ids.insert(process.line_with("id=", Duration::from_secs(20)));
    }
    assert_eq!(ids.len(), 2, "{ids:?}");
}

#[tokio::test]
#[ignore = "a child"]
async fn child_that_says_its_id() {
    let Some(url) = child::role() else { return };
    println!("id={}", connect(&url).await.id());
}

// T11, scaled. The counter is read and written apart, so only the lock keeps it right.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_behind_the_lock_is_exact_though_connections_are_killed() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (processes, seconds) = if long() { (4, 60) } else { (2, 3) };
    probe.set("stop", "0").await;
    let children: Vec<_> =
        (0..processes).map(|_| child::spawn("child_that_counts", &server.port().to_string())).collect();
    for child in &children {
        child.line_with("counting", Duration::from_secs(20));
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut killed = 0;
    while Instant::now() < end {
        tokio::time::sleep(200 * MS).await;
        for line in probe.others().await {
            let id = line.split(' ').find_map(|part| part.strip_prefix("id=")).unwrap();
            killed += u32::from(probe.client_kill_id(id).await);
        }
    }
    probe.set("stop", "1").await;
    let mut total = 0;
    for child in &children {
        let line = child.line_with("counted=", Duration::from_secs(60));
        let (counted, lapsed) = line.split_once("counted=").unwrap().1.split_once(" lost=").unwrap();
        assert_eq!(lapsed.trim(), "0", "a lease lapsed: the count says nothing");
        total += counted.parse::<u64>().unwrap();
    }
    assert!(killed > 10, "{killed}");
    assert!(total > 50, "{total}");
    assert_eq!(probe.get("counter").await.unwrap(), total.to_string());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a child"]
async fn child_that_counts() {
    let Some(port) = child::role().and_then(|port| port.parse().ok()) else { return };
    let client = connect(&format!("redis://127.0.0.1:{port}")).await;
    let counted = Arc::new(AtomicU64::new(0));
    println!("counting");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..if long() { 50 } else { 10 } {
        let (lock, counted) = (client.get_lock("section"), counted.clone());
        tasks.spawn(async move {
            let probe = Probe::connect(port).await;
            while probe.get("stop").await.as_deref() == Some("0") {
                let guard = lock.lock().await.unwrap();
                let n: u64 = probe.get("counter").await.map_or(0, |n| n.parse().unwrap());
                probe.set("counter", &(n + 1).to_string()).await;
                counted.fetch_add(1, SeqCst);
                drop(guard);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    println!("counted={} lost={}", counted.load(SeqCst), client.stats().lost);
}

// T12
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_cannot_release() {
    let server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let probe = server.probe().await;
    let guard = a.get_lock("k").lock().await.unwrap();
    for stranger in [b.get_lock("k"), a.get_lock("k").with_owner(Owner::new())] {
        match stranger.unlock().await {
            Err(Error::NotHeld { why: NotHeld::Never, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(probe.count("k").await, 1);
    guard.unlock().await.unwrap();
}

// T12
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_below_a_second_is_sent_in_milliseconds_and_rounded_up() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let monitor = Monitor::start(server.port()).await;
    let cases = [
        (Duration::from_nanos(1), "1"),
        (MS, "1"),
        (Duration::from_micros(1_500), "2"),
        (999 * MS, "999"),
        (Duration::from_micros(1_000_001), "1001"),
    ];
    for (n, (lease, sent)) in cases.into_iter().enumerate() {
        monitor.clear();
        let key = format!("lease:{n}");
        match client.get_lock(&key).with_lease(lease).try_lock().await {
            Ok(Some(guard)) => drop(guard),
            Err(Error::ExpiredBeforeUse { .. }) => assert!(lease < 100 * MS, "{lease:?}"),
            other => panic!("{lease:?}: {other:?}"),
        }
        let seen = monitor.seen().await;
        let expiries: Vec<_> = seen.iter().filter(|s| s.name() == "PEXPIRE").map(|s| s.args[2].clone()).collect();
        assert!(!expiries.is_empty() && expiries.iter().all(|e| e == sent), "{lease:?}: {expiries:?}");
    }
}

// T13
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_never_brings_a_removed_key_back() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let a = LockClient::builder().url(server.url()).watchdog_timeout(600 * MS).connect().await.unwrap();
    let b = connect(server.url()).await;
    let guard = a.get_lock("k").lock().await.unwrap();
    assert!(probe.del("k").await);
    let end = tokio::time::timeout(600 * MS, guard.lost()).await.expect("told by the next renewal");
    assert_eq!(end, HoldEnd::Lost(LostReason::Gone));
    assert!(matches!(guard.extend(Duration::from_secs(1)).await, Err(Error::Lost(_))));
    let calls = probe.calls("evalsha").await;
    let theirs = b.get_lock("k").with_lease(Duration::from_secs(30)).try_lock().await.unwrap().expect("free");
    let field = probe.hgetall("k").await;
    // Three periods: time for whatever would still be renewed.
    tokio::time::sleep(600 * MS).await;
    assert_eq!(probe.calls("evalsha").await, calls + 1, "something was sent for a lost hold");
    assert!(matches!(guard.unlock().await, Err(Error::Lost(_))));
    assert_eq!(probe.hgetall("k").await, field);
    assert!(probe.pttl("k").await > 20_000);
    assert_eq!(a.stats().lost, 1);
    theirs.unlock().await.unwrap();
}

// T13
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_taken_over_under_its_guard_is_lost_and_never_taken_back() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let a = LockClient::builder().url(server.url()).watchdog_timeout(600 * MS).connect().await.unwrap();
    let guard = a.get_lock("k").lock().await.unwrap();
    probe.cmd(&["MULTI"]).await;
    probe.cmd(&["DEL", "k"]).await;
    probe.cmd(&["HSET", "k", "stranger:1", "1"]).await;
    probe.cmd(&["PEXPIRE", "k", "5000"]).await;
    probe.cmd(&["EXEC"]).await;
    let end = tokio::time::timeout(600 * MS, guard.lost()).await.expect("told by the next renewal");
    assert_eq!(end, HoldEnd::Lost(LostReason::Gone));
    drop(guard);
    assert!(probe.del("k").await);
    tokio::time::sleep(600 * MS).await;
    assert!(!probe.exists("k").await, "taken back");
}
