//! The nine promises (docs/guarantees.md), each by name.
#![allow(missing_docs)]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::proxy::{Mode, contains};
use common::{Monitor, Probe, Proxy, TestServer, eventually};
use redisson_lock::{Error, HoldEnd, LockClient, LockClientBuilder, LockGuard, LostReason, NotHeld, Owner, RLock};

const PROMPT: Duration = Duration::from_secs(5);
/// What a bounded call may take above its bound, on a machine that is busy with other tests.
const CONSTANT: Duration = Duration::from_secs(2);

fn at(url: &str) -> LockClientBuilder {
    LockClient::builder().url(url)
}

/// A client whose watchdog lease is short.
async fn brisk(url: &str, lease: Duration) -> LockClient {
    at(url).watchdog_timeout(lease).connect().await.unwrap()
}

async fn gone(probe: &Probe, key: &str) {
    eventually(PROMPT, &format!("{key} is gone"), || async { !probe.exists(key).await }).await;
}

async fn within<F: Future>(time: Duration, what: &str, future: F) -> F::Output {
    tokio::time::timeout(time, future).await.unwrap_or_else(|_| panic!("not within {time:?}: {what}"))
}

async fn waiting(client: &LockClient, calls: u64) {
    eventually(PROMPT, "the calls are in the queue", || async { client.stats().waiting == calls }).await;
}

async fn subscribed(probe: &Probe, key: &str) {
    let channel = format!("redisson_lock__channel:{{{key}}}");
    eventually(PROMPT, "the waiter has subscribed", || async { probe.numsub(&channel).await >= 1 }).await;
}

fn spawn_lock(lock: &RLock) -> tokio::task::JoinHandle<Result<LockGuard, Error>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.lock().await })
}

/// No key, no channel, nothing held, waited for or in doubt; nothing renewed either.
async fn nothing_left(client: &LockClient, probe: &Probe, key: &str) {
    gone(probe, key).await;
    let end = Instant::now() + PROMPT;
    while let stats = client.stats()
        && (stats.held, stats.waiting, stats.doubtful) != (0, 0, 0)
    {
        assert!(Instant::now() < end, "still held, waited for or in doubt: {stats:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    eventually(PROMPT, "no channel", || async { probe.channels().await.is_empty() }).await;
    assert!(!probe.exists(key).await);
}

// 1. At most one holder.

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn promise_1_while_a_guard_is_not_lost_nobody_else_is_granted_the_lock() {
    let server = TestServer::own().await;
    let inside = Arc::new(AtomicU32::new(0));
    let (sections, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    // Between clients, between tasks of one client, and between watched and leased holds.
    for who in 0..4 {
        let client = LockClient::connect(server.url()).await.unwrap();
        for task in 0..4 {
            let lock = client.get_lock("one");
            let lock = if (who + task) % 2 == 0 { lock.with_lease(Duration::from_secs(20)) } else { lock };
            let (inside, sections, most) = (inside.clone(), sections.clone(), most.clone());
            tasks.push(tokio::spawn(async move {
                for turn in 0..25 {
                    let guard = lock.lock().await.unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    assert!(!guard.is_lost());
                    sections.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if turn % 2 == 0 { drop(guard) } else { guard.unlock().await.unwrap() }
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((sections.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (400, 1));
}

#[tokio::test]
async fn promise_1_a_holder_whose_key_is_deleted_is_told_within_a_renewal_period_and_by_a_forced_unlock_at_once() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = brisk(server.url(), Duration::from_secs(6)).await;
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let guard = client.get_lock("deleted").lock().await.unwrap();
    probe.cmd(&["DEL", "deleted"]).await;
    let end = within(Duration::from_secs(2) + CONSTANT, "a renewal period", guard.lost()).await;
    assert_eq!(end, HoldEnd::Lost(LostReason::Gone));

    assert!(!probe.exists("deleted").await);

    // A client that listens, because one of its own waits, hears the message of a forced unlock: thirty seconds of lease,
    // so that a renewal period would be ten.
    let client = LockClient::connect(server.url()).await.unwrap();
    let foreign = stranger.get_lock("forced").lock().await.unwrap();
    let lock = client.get_lock("forced").non_reentrant();
    let first = spawn_lock(&lock);
    waiting(&client, 1).await;
    let second = spawn_lock(&lock);
    waiting(&client, 2).await;
    subscribed(&probe, "forced").await;
    settled_calls(&probe).await;
    foreign.unlock().await.unwrap();
    let guard = within(PROMPT, "the first", first).await.unwrap().unwrap();
    assert!(!guard.is_lost());
    assert!(stranger.get_lock("forced").force_unlock().await.unwrap());
    assert_eq!(within(PROMPT, "the message", guard.lost()).await, HoldEnd::Lost(LostReason::Gone));
    drop(guard);
    within(PROMPT, "the second", second).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn promise_1_the_forced_holder_of_the_same_client_is_told_at_once() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.get_lock("forced");
    let guard = lock.lock().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(within(PROMPT, "told", guard.lost()).await, HoldEnd::Lost(LostReason::Gone));
    assert!(guard.is_lost() && guard.remaining().is_zero());
}

// 2. Told in time.

#[tokio::test]
async fn promise_2_a_frozen_server_is_told_as_lost_no_later_than_the_deadline() {
    let mut server = TestServer::own().await;
    const LEASE: Duration = Duration::from_millis(1_500);
    let client = brisk(server.url(), LEASE).await;
    let guard = client.get_lock("frozen").lock().await.unwrap();
    let leased = client.get_lock("frozen-leased").with_lease(LEASE).lock().await.unwrap();
    server.freeze();
    let frozen = Instant::now();
    for guard in [&guard, &leased] {
        let ran = guard.run(std::future::pending::<()>());
        let lost = within(LEASE + CONSTANT, "the deadline", ran).await.unwrap_err();
        assert_eq!(lost.reason, LostReason::Expired);
        assert!(guard.is_lost() && guard.remaining().is_zero());
    }
    // The deadline itself: no renewal confirmed after the freeze can have moved it out further than one lease.
    assert!(frozen.elapsed() < LEASE + CONSTANT);
    server.thaw();
    // Both keys run out at the server, and nobody renews them.
    let probe = server.probe().await;
    gone(&probe, "frozen").await;
    gone(&probe, "frozen-leased").await;
    assert!(matches!(guard.unlock().await, Err(Error::Lost(_))));
    assert!(matches!(leased.extend(PROMPT).await, Err(Error::Lost(_))));
    assert!(!probe.exists("frozen-leased").await);
}

#[tokio::test]
async fn promise_2_the_guard_says_lost_before_the_server_gives_the_key_to_another() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    for _ in 0..20 {
        let guard = client.get_lock("ends").with_lease(Duration::from_millis(60)).lock().await.unwrap();
        let next = within(PROMPT, "the next holder", stranger.get_lock("ends").lock()).await.unwrap();
        assert!(guard.is_lost(), "two holders at once");
        drop(guard);
        next.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn promise_2_a_flush_is_told_within_a_renewal_period() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    // Ten seconds before the deadline, and a third of that until the next renewal.
    let client = brisk(server.url(), Duration::from_secs(9)).await;
    let guards = [client.get_lock("a").lock().await.unwrap(), client.get_lock("b").lock().await.unwrap()];
    probe.cmd(&["FLUSHALL"]).await;
    for guard in &guards {
        let end = within(Duration::from_secs(3) + CONSTANT, "a renewal period", guard.lost()).await;
        assert_eq!(end, HoldEnd::Lost(LostReason::Gone));
    }
    assert_eq!(client.stats().lost, 2);
    assert_eq!(probe.dbsize().await, 0);
}

#[tokio::test]
async fn promise_2_a_renewal_a_nested_acquire_or_an_extension_never_makes_a_key() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = brisk(server.url(), Duration::from_millis(600)).await;
    // By the watchdog.
    let guard = client.get_lock("renewed").lock().await.unwrap();
    probe.cmd(&["DEL", "renewed"]).await;
    within(PROMPT, "told", guard.lost()).await;
    assert!(!probe.exists("renewed").await);
    // By `extend`.
    let guard = client.get_lock("extended").with_lease(PROMPT).lock().await.unwrap();
    probe.cmd(&["DEL", "extended"]).await;
    assert!(matches!(guard.extend(PROMPT * 2).await, Err(Error::Lost(_))));
    assert!(!probe.exists("extended").await);
    // By a nested acquire: the hold is lost, and what it gets instead is an outermost hold under a new field.
    let lock = client.get_lock("nested").with_lease(PROMPT);
    let outer = lock.lock().await.unwrap();
    let field = probe.hgetall("nested").await.into_keys().next().unwrap();
    probe.cmd(&["DEL", "nested"]).await;
    let inner = within(PROMPT, "an outermost hold", lock.lock()).await.unwrap();
    assert!(outer.is_lost() && !inner.is_lost());
    let holders = probe.hgetall("nested").await;
    assert!(!holders.contains_key(&field), "the lost field was made again: {holders:?}");
    assert_eq!(holders.into_values().collect::<Vec<_>>(), ["1"]);
    drop(outer);
    inner.unlock().await.unwrap();
    assert!(!probe.exists("nested").await);
}

#[tokio::test]
async fn promise_2_the_release_of_a_lost_hold_never_touches_another_owners() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let lock = client.get_lock("taken");
    for by_drop in [false, true] {
        let guard = lock.lock().await.unwrap();
        probe.cmd(&["DEL", "taken"]).await;
        let theirs = stranger.get_lock("taken").lock().await.unwrap();
        let holders = probe.hgetall("taken").await;
        // This guard has not heard of it yet: it asks the server to release.
        if by_drop {
            drop(guard);
            // Behind it on the same connection.
            assert!(lock.is_locked().await.unwrap());
        } else {
            match guard.unlock().await {
                Err(Error::NotHeld { why: NotHeld::TakenBy(by), .. }) => assert!(holders.contains_key(&*by)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(probe.hgetall("taken").await, holders);
        theirs.unlock().await.unwrap();
    }
    // The same owner's next hold is a stranger to its lost one, too.
    let lost = lock.with_lease(Duration::from_millis(50)).lock().await.unwrap();
    within(PROMPT, "expiry", lost.lost()).await;
    gone(&probe, "taken").await;
    let next = lock.lock().await.unwrap();
    drop(lost);
    assert!(lock.is_held().await.unwrap());
    assert_eq!(probe.count("taken").await, 1);
    next.unlock().await.unwrap();
}

#[tokio::test]
async fn promise_2_a_grant_that_comes_after_its_lease_is_released_and_reported() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let proxy = Proxy::start(server.port()).await;
    let client = at(&proxy.url()).connect().await.unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(150)));
    let short = client.get_lock("late").with_lease(Duration::from_millis(200));
    match within(PROMPT, "the answer", short.try_lock()).await {
        Err(Error::ExpiredBeforeUse { lease, .. }) => assert_eq!(lease, Duration::from_millis(200)),
        other => panic!("{other:?}"),
    }
    proxy.set(Mode::Pass);
    nothing_left(&client, &probe, "late").await;
}

// 3. Nothing left behind.

/// Starts the call, lets it run that long, and drops it.
async fn dropped_after<F: Future>(time: Duration, call: F) {
    let _ = tokio::time::timeout(time, call).await;
}

#[tokio::test]
async fn promise_3_any_future_dropped_at_any_moment_leaves_nothing() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.get_lock("dropped").non_reentrant();
    for step in 0..40 {
        let time = Duration::from_micros(step * 50);
        dropped_after(time, lock.lock()).await;
        dropped_after(time, lock.try_lock()).await;
        dropped_after(time, lock.try_lock_for(PROMPT)).await;
        let guard = within(PROMPT, "free again", lock.lock()).await.unwrap();
        dropped_after(time, guard.extend(Duration::from_secs(60))).await;
        dropped_after(time, lock.force_unlock()).await;
        dropped_after(time, guard.unlock()).await;
        // Nested ones, behind a hold that stays.
        let reentrant = client.get_lock("dropped");
        if let Ok(Ok(outer)) = tokio::time::timeout(PROMPT, reentrant.lock()).await {
            dropped_after(time, reentrant.lock()).await;
            let inner = within(PROMPT, "re-entry", reentrant.lock()).await.unwrap();
            assert_eq!(probe.count("dropped").await, 2, "step {step}");
            dropped_after(time, inner.unlock()).await;
            eventually(PROMPT, "one hold is left", || async { probe.count("dropped").await == 1 }).await;
            dropped_after(time, outer.unlock()).await;
        } else {
            panic!("not free at step {step}");
        }
    }
    nothing_left(&client, &probe, "dropped").await;
}

#[tokio::test]
async fn promise_3_waiters_that_leave_or_are_aborted_leave_nothing() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let foreign = stranger.get_lock("busy").lock().await.unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let lock = client.get_lock("busy");
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    waiting(&client, 20).await;
    subscribed(&probe, "busy").await;
    tasks.iter().for_each(|t| t.abort());
    waiting(&client, 0).await;
    eventually(PROMPT, "nobody listens any more", || async { probe.channels().await.is_empty() }).await;
    foreign.unlock().await.unwrap();
    nothing_left(&client, &probe, "busy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promise_3_a_panic_an_abort_and_a_plain_thread_release() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.get_lock("ended");

    let panicking = lock.clone();
    let task = tokio::spawn(async move {
        let _outer = panicking.lock().await.unwrap();
        let _inner = panicking.lock().await.unwrap();
        panic!("the work failed");
    });
    assert!(task.await.unwrap_err().is_panic());
    nothing_left(&client, &probe, "ended").await;

    let aborted = lock.clone();
    let (held, is_held) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let _guard = aborted.lock().await.unwrap();
        held.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    is_held.await.unwrap();
    assert!(probe.exists("ended").await);
    task.abort();
    nothing_left(&client, &probe, "ended").await;

    let guard = lock.lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    nothing_left(&client, &probe, "ended").await;
}

#[test]
fn promise_3_a_guard_dropped_after_its_runtime_has_ended_leaves_nothing() {
    let looking = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = looking.block_on(TestServer::own());
    let probe = looking.block_on(server.probe());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, guard) = runtime.block_on(async {
        let client = LockClient::connect(server.url()).await.unwrap();
        let guard = client.get_lock("after").lock().await.unwrap();
        (client, guard)
    });
    drop(runtime);
    looking.block_on(async { assert_eq!(probe.count("after").await, 1) });
    drop(guard);
    looking.block_on(nothing_left(&client, &probe, "after"));
}

#[tokio::test]
async fn promise_3_an_acquire_dropped_while_its_answer_is_lost_leaves_nothing() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let proxy = Proxy::start(server.port()).await;
    let client = at(&proxy.url()).command_timeout(Duration::from_millis(300)).connect().await.unwrap();
    let lock = client.get_lock("unanswered").with_lease(Duration::from_secs(60));
    proxy.set(Mode::SwallowReplies);
    dropped_after(Duration::from_millis(100), lock.lock()).await;
    eventually(PROMPT, "it was executed", || async { probe.calls("evalsha").await > 0 }).await;
    proxy.set(Mode::Pass);
    // Long before the lease, and with the connection broken on top.
    proxy.reset_all();
    nothing_left(&client, &probe, "unanswered").await;
}

// 4. Exactly once.

/// The next acquire or release of this key is executed, its answer lost and its connection reset. Not before an earlier
/// fault is cleared up, lest it hit that.
async fn lose(client: &LockClient, proxy: &Proxy, key: &'static str) -> u64 {
    eventually(PROMPT, "nothing in doubt", || async { client.stats().doubtful == 0 }).await;
    let before = proxy.lost();
    proxy.lose_reply_of(move |chunk| contains(chunk, "EVALSHA") && contains(chunk, key));
    before
}

/// Where connections break faster than they can be told apart, an acquire without an answer is in doubt for one lease at
/// most: a short one.
async fn hasty(url: &str) -> LockClient {
    let builder = at(url).watchdog_timeout(Duration::from_secs(3)).command_timeout(Duration::from_millis(500));
    builder.connect().await.unwrap()
}

/// The server's count of a key is this many; and there is no key but this one.
async fn counts(probe: &Probe, key: &str, live: u64) {
    eventually(PROMPT, &format!("{live} holds of {key}"), || async { probe.count(key).await == live }).await;
    assert_eq!(probe.dbsize().await, i64::from(live > 0));
}

#[tokio::test]
async fn promise_4_a_lost_reply_never_makes_the_count_differ_from_the_live_guards() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let proxy = Proxy::start(server.port()).await;
    let client = hasty(&proxy.url()).await;
    let lock = client.get_lock("once");

    // The outermost acquire.
    let before = lose(&client, &proxy, "once").await;
    let outer = within(PROMPT * 2, "the outermost acquire", lock.lock()).await.unwrap();
    assert_eq!(proxy.lost(), before + 1);
    counts(&probe, "once", 1).await;

    // A nested one.
    let before = lose(&client, &proxy, "once").await;
    let inner = within(PROMPT * 2, "the nested acquire", lock.lock()).await.unwrap();
    assert_eq!(proxy.lost(), before + 1);
    counts(&probe, "once", 2).await;

    // A third, to tell a repetition from a count.
    let third = within(PROMPT, "the third", lock.lock()).await.unwrap();
    counts(&probe, "once", 3).await;

    // A partial release, by drop and by unlock.
    let before = lose(&client, &proxy, "once").await;
    drop(third);
    eventually(PROMPT, "its reply is lost", || async { proxy.lost() == before + 1 }).await;
    counts(&probe, "once", 2).await;
    let before = lose(&client, &proxy, "once").await;
    match within(PROMPT * 2, "the partial release", inner.unlock()).await {
        Ok(()) | Err(Error::Unconfirmed { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(proxy.lost(), before + 1);
    counts(&probe, "once", 1).await;

    // An extension.
    let before = lose(&client, &proxy, "once").await;
    let _ = within(PROMPT * 2, "the extension", outer.extend(Duration::from_secs(60))).await;
    assert_eq!(proxy.lost(), before + 1);
    counts(&probe, "once", 1).await;
    assert!(!outer.is_lost());

    // The final release: the resend finds no field, and that is what was wanted.
    let before = lose(&client, &proxy, "once").await;
    within(PROMPT * 2, "the final release", outer.unlock()).await.unwrap();
    assert_eq!(proxy.lost(), before + 1);
    counts(&probe, "once", 0).await;
    nothing_left(&client, &probe, "once").await;
}

#[tokio::test]
async fn promise_4_a_try_lock_whose_answer_is_lost_fails_and_leaves_no_hold() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let proxy = Proxy::start(server.port()).await;
    let client = at(&proxy.url()).command_timeout(Duration::from_millis(500)).connect().await.unwrap();
    let before = lose(&client, &proxy, "single").await;
    let tried = within(PROMPT, "one attempt", client.get_lock("single").try_lock()).await;
    assert!(matches!(tried, Err(Error::Connection { .. } | Error::Timeout { .. })), "{tried:?}");
    assert_eq!(proxy.lost(), before + 1);
    nothing_left(&client, &probe, "single").await;
    let guard = within(PROMPT, "free", client.get_lock("single").lock()).await.unwrap();
    counts(&probe, "single", 1).await;
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn promise_4_connections_reset_again_and_again_cost_no_hold_and_leave_none() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let proxy = Proxy::start(server.port()).await;
    let client = hasty(&proxy.url()).await;
    let lock = client.get_lock("reset");
    let over = Arc::new(AtomicBool::new(false));
    let worker = {
        let (lock, over) = (lock.clone(), over.clone());
        tokio::spawn(async move {
            let mut turns = 0;
            while !over.load(Ordering::SeqCst) {
                let outer = lock.lock().await.unwrap();
                let inner = lock.lock().await.unwrap();
                drop(inner);
                drop(outer);
                turns += 1;
            }
            turns
        })
    };
    for _ in 0..10 {
        let accepted = proxy.connections();
        proxy.reset_all();
        eventually(PROMPT, "it connects again", || async { proxy.connections() >= accepted + 2 }).await;
    }
    over.store(true, Ordering::SeqCst);
    let turns: u32 = within(PROMPT * 2, "the worker ends", worker).await.unwrap();
    assert!(turns > 0);
    nothing_left(&client, &probe, "reset").await;
    assert_eq!(client.stats().lost, 0);
    let guards = [lock.lock().await.unwrap(), lock.lock().await.unwrap()];
    counts(&probe, "reset", 2).await;
    drop(guards);
    counts(&probe, "reset", 0).await;
}

// 5. No wake-up lost.

#[tokio::test]
async fn promise_5_a_release_while_the_subscription_is_down_is_not_missed() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    // No other reason to look: the TTL and the re-check are far away.
    let client = at(server.url()).recheck_interval(Duration::from_secs(600)).connect().await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    for _ in 0..3 {
        let foreign = stranger.get_lock("deaf").with_lease(Duration::from_secs(600)).lock().await.unwrap();
        let lock = client.get_lock("deaf");
        let waiter = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
        waiting(&client, 1).await;
        subscribed(&probe, "deaf").await;
        let killed = probe.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.int();
        assert!(killed >= 1);
        foreign.unlock().await.unwrap();
        within(PROMPT, "the waiter is granted", waiter).await.unwrap().unwrap();
    }
    nothing_left(&client, &probe, "deaf").await;
}

/// The scripts called so far, once none has been called for a while: the attempt behind the confirmed subscription is over.
async fn settled_calls(probe: &Probe) -> u64 {
    let end = Instant::now() + PROMPT;
    let (mut calls, mut since) = (probe.calls("evalsha").await, Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        assert!(Instant::now() < end, "the waiter does not come to rest");
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = probe.calls("evalsha").await;
        if now != calls {
            (calls, since) = (now, Instant::now());
        }
    }
    calls
}

#[tokio::test]
async fn promise_5_a_release_is_heard_at_once_and_with_one_attempt() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = at(server.url()).recheck_interval(Duration::from_secs(600)).connect().await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let foreign = stranger.get_lock("heard").with_lease(Duration::from_secs(600)).lock().await.unwrap();
    let lock = client.get_lock("heard");
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    waiting(&client, 1).await;
    subscribed(&probe, "heard").await;
    let calls = settled_calls(&probe).await;
    foreign.unlock().await.unwrap();
    let guard = within(PROMPT, "the waiter is granted", waiter).await.unwrap();
    assert_eq!(probe.calls("evalsha").await, calls + 2, "one release, one attempt");
    assert_eq!(client.stats().repolls, 0);
    drop(guard);
}

#[tokio::test]
async fn promise_5_a_waiter_that_leaves_when_it_is_notified_passes_the_notice_on() {
    let server = TestServer::own().await;
    let client = at(server.url()).recheck_interval(Duration::from_secs(600)).connect().await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    for round in 0..30 {
        let foreign = stranger.get_lock("passed").with_lease(Duration::from_secs(600)).lock().await.unwrap();
        let (first, second) = (client.get_lock("passed"), client.get_lock("passed"));
        let first = tokio::spawn(async move { first.lock().await.map(drop) });
        waiting(&client, 1).await;
        let second = tokio::spawn(async move { second.lock().await.unwrap().unlock().await });
        waiting(&client, 2).await;
        subscribed(&probe, "passed").await;
        let release = tokio::spawn(async move { foreign.unlock().await });
        tokio::time::sleep(Duration::from_micros(100 * round)).await;
        first.abort();
        release.await.unwrap().unwrap();
        within(PROMPT, "the second is granted", second).await.unwrap().unwrap();
    }
    nothing_left(&client, &probe, "passed").await;
}

#[tokio::test]
async fn promise_5_a_key_that_vanishes_without_a_message_is_found_at_the_re_check() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = at(server.url()).recheck_interval(Duration::from_millis(300)).connect().await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let foreign = stranger.get_lock("vanished").with_lease(Duration::from_secs(600)).lock().await.unwrap();
    let lock = client.get_lock("vanished");
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    waiting(&client, 1).await;
    subscribed(&probe, "vanished").await;
    probe.cmd(&["DEL", "vanished"]).await;
    within(PROMPT, "the re-check", waiter).await.unwrap().unwrap();
    drop(foreign);
}

// 6. The watchdog does not starve.

#[test]
fn promise_6_a_runtime_that_is_blocked_keeps_its_locks() {
    let looking = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = looking.block_on(TestServer::own());
    let probe = looking.block_on(server.probe());
    const LEASE: Duration = Duration::from_secs(2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = brisk(server.url(), LEASE).await;
        let guard = client.get_lock("blocked").lock().await.unwrap();
        // Code that never gives the runtime a turn.
        std::thread::sleep(LEASE * 3 / 2);
        assert!(!guard.is_lost() && !guard.remaining().is_zero());
        looking.spawn(async move { assert_eq!(probe.count("blocked").await, 1) }).await.unwrap();
        guard.unlock().await.unwrap();
    });
}

#[tokio::test]
async fn promise_6_one_bad_key_among_250_does_not_stop_the_others() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    const LEASE: Duration = Duration::from_secs(3);
    let client = brisk(server.url(), LEASE).await;
    let mut guards = Vec::new();
    for n in 0..250 {
        guards.push(client.get_lock(format!("many:{n}")).lock().await.unwrap());
    }
    // In the middle of the second batch of 100.
    let bad = guards.remove(133);
    probe.set("many:133", "not a lock").await;
    let end = within(LEASE / 3 + CONSTANT, "the bad one is told", bad.lost()).await;
    assert_eq!(end, HoldEnd::Lost(LostReason::WrongType));
    // The rest lives on for longer than a lease without renewal would.
    let until = Instant::now() + LEASE + LEASE / 2;
    while Instant::now() < until {
        assert!(guards.iter().all(|g| !g.is_lost()));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for guard in &guards {
        assert_eq!(probe.count(guard.name()).await, 1);
    }
    assert_eq!(client.stats().lost, 1);
    assert_eq!(probe.get("many:133").await.as_deref(), Some("not a lock"));
}

#[tokio::test]
async fn promise_6_a_failed_renewal_is_tried_again_until_it_succeeds() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let proxy = Proxy::start(server.port()).await;
    const LEASE: Duration = Duration::from_secs(4);
    let client = brisk(&proxy.url(), LEASE).await;
    let guard = client.get_lock("stubborn").lock().await.unwrap();
    let before = client.stats();
    proxy.set(Mode::BlackHole);
    eventually(LEASE, "a renewal has failed", || async { client.stats().late > before.late }).await;
    proxy.set(Mode::Pass);
    eventually(LEASE, "a renewal got through", || async { client.stats().renewals > before.renewals }).await;
    assert!(!guard.is_lost());
    assert_eq!(probe.count("stubborn").await, 1);
}

// 7. Leases never shrink.

#[tokio::test]
async fn promise_7_re_entry_partial_release_renewal_and_extension_never_shorten_a_lease() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = brisk(server.url(), Duration::from_millis(900)).await;
    let lock = client.get_lock("long");
    let hour = Duration::from_secs(3_600);
    // What passes in this test is far less than a minute.
    let stays = async |what: &str| {
        let left = probe.pttl("long").await;
        assert!(left > 3_540_000, "{what}: {left} ms left");
    };
    let outer = lock.with_lease(hour).lock().await.unwrap();
    stays("taken").await;
    let inner = lock.with_lease(Duration::from_secs(1)).lock().await.unwrap();
    stays("re-entered with a shorter lease").await;
    inner.extend(Duration::from_secs(2)).await.unwrap();
    stays("extended to less").await;
    assert!(outer.remaining() > Duration::from_secs(3_500));
    inner.unlock().await.unwrap();
    stays("partly released").await;
    let before = client.stats().renewals;
    let watched = lock.lock().await.unwrap();
    stays("re-entered by a watched hold").await;
    eventually(PROMPT, "renewed", || async { client.stats().renewals >= before + 2 }).await;
    stays("renewed").await;
    watched.unlock().await.unwrap();
    stays("the watched hold released").await;
    outer.extend(hour * 2).await.unwrap();
    assert!(probe.pttl("long").await > 7_000_000);
    outer.unlock().await.unwrap();
    assert!(!probe.exists("long").await);
}

#[tokio::test]
async fn promise_7_watched_and_leased_holds_are_counted_apart() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    const LEASE: Duration = Duration::from_millis(1_200);
    let client = brisk(server.url(), LEASE).await;
    let renewed = async |more: u64| {
        let before = client.stats().renewals;
        eventually(PROMPT, "renewed", || async { client.stats().renewals >= before + more }).await;
    };

    // A leased hold inside a watched one: it goes, and the watched one is renewed on.
    let lock = client.get_lock("apart");
    let watched = lock.lock().await.unwrap();
    let leased = lock.with_lease(LEASE).lock().await.unwrap();
    drop(leased);
    renewed(4).await;
    assert!(!watched.is_lost());
    assert_eq!(probe.count("apart").await, 1);

    // A watched hold inside a leased one: while it is there, all is renewed; when it goes, the key runs out.
    watched.unlock().await.unwrap();
    let leased = lock.with_lease(LEASE).lock().await.unwrap();
    let watched = lock.lock().await.unwrap();
    renewed(4).await;
    assert!(!leased.is_lost());
    assert_eq!(probe.count("apart").await, 2);
    watched.unlock().await.unwrap();
    assert_eq!(probe.count("apart").await, 1);
    assert_eq!(within(LEASE + CONSTANT, "it runs out", leased.lost()).await, HoldEnd::Lost(LostReason::Expired));
    gone(&probe, "apart").await;
}

// 8. Bounded.

async fn returns_in_time(lock: &RLock, wait: Duration, how: &str) -> Result<bool, Error> {
    let start = Instant::now();
    let result = within(wait + CONSTANT, how, lock.try_lock_for(wait)).await;
    assert!(start.elapsed() >= wait || result.is_ok(), "{how}: it gave up early, after {:?}", start.elapsed());
    result.map(|guard| guard.is_some())
}

#[tokio::test]
async fn promise_8_try_lock_for_returns_in_time_when_the_server_is_frozen_or_killed() {
    let mut server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let wait = Duration::from_millis(400);
    server.freeze();
    let frozen = returns_in_time(&client.get_lock("frozen"), wait, "frozen").await;
    assert!(matches!(frozen, Err(Error::Timeout { .. })), "{frozen:?}");
    server.thaw();
    server.kill9();
    let killed = returns_in_time(&client.get_lock("killed"), wait, "killed").await;
    assert!(matches!(killed, Err(Error::Timeout { .. })), "{killed:?}");
}

#[tokio::test]
async fn promise_8_try_lock_for_returns_in_time_when_the_network_swallows_everything() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let proxy = Proxy::start(server.port()).await;
    let client = LockClient::connect(proxy.url()).await.unwrap();
    let wait = Duration::from_millis(400);
    for mode in [Mode::BlackHole, Mode::SwallowReplies, Mode::SwallowRequests] {
        proxy.set(mode);
        let result = returns_in_time(&client.get_lock("swallowed"), wait, &format!("{mode:?}")).await;
        assert!(matches!(result, Err(Error::Timeout { .. })), "{mode:?}: {result:?}");
        proxy.set(Mode::Pass);
        proxy.reset_all();
        eventually(PROMPT * 2, "nothing of it is left", || async {
            client.stats().doubtful == 0 && !probe.exists("swallowed").await
        })
        .await;
    }
}

#[tokio::test]
async fn promise_8_try_lock_for_returns_none_in_time_when_another_holds_and_the_server_freezes() {
    let mut server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let _foreign = stranger.get_lock("held").lock().await.unwrap();
    let lock = client.get_lock("held");
    assert!(!returns_in_time(&lock, Duration::from_millis(300), "held").await.unwrap());
    let wait = Duration::from_secs(2);
    let waiter = tokio::spawn(async move { returns_in_time(&lock, wait, "held, then frozen").await });
    waiting(&client, 1).await;
    settled_calls(&probe).await;
    assert_eq!(client.stats().contended, 2, "each wait is counted");
    server.freeze();
    assert!(!waiter.await.unwrap().unwrap());
    server.thaw();
}

#[tokio::test]
async fn promise_8_a_re_entry_with_a_frozen_server_returns_in_time() {
    let mut server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock("again");
    let outer = lock.lock().await.unwrap();
    server.freeze();
    let start = Instant::now();
    let inner =
        within(Duration::from_millis(400) + CONSTANT, "the re-entry", lock.try_lock_for(Duration::from_millis(400)));
    let inner = inner.await;
    assert!(start.elapsed() >= Duration::from_millis(400));
    assert!(!matches!(inner, Ok(Some(_))), "{inner:?}");
    server.thaw();
    eventually(PROMPT, "the count is the outer hold alone", || async { probe.count("again").await == 1 }).await;
    assert!(!outer.is_lost());
    outer.unlock().await.unwrap();
    nothing_left(&client, &probe, "again").await;
}

// 9. Quiet.

#[tokio::test]
async fn promise_9_an_uncontended_pair_is_two_evalsha_and_an_idle_client_says_nothing() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = brisk(server.url(), Duration::from_millis(600)).await;
    let lock = client.get_lock("quiet");
    lock.lock().await.unwrap().unlock().await.unwrap();
    let monitor = Monitor::start(server.port()).await;
    for _ in 0..10 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    assert_eq!(monitor.sent().await, vec!["EVALSHA"; 20]);
    monitor.clear();
    // Several renewal periods.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(monitor.sent().await, Vec::<String>::new());
    assert_eq!(probe.dbsize().await, 0);
}

#[tokio::test]
async fn promise_9_after_a_contended_lock_the_client_falls_silent_again() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = brisk(server.url(), Duration::from_millis(600)).await;
    let owners: Vec<_> = (0..8).map(|_| client.get_lock("noisy").with_owner(Owner::new())).collect();
    let mut all = tokio::task::JoinSet::new();
    for lock in owners {
        all.spawn(async move { lock.lock().await.unwrap().unlock().await.unwrap() });
    }
    within(PROMPT, "all had it", all.join_all()).await;
    nothing_left(&client, &probe, "noisy").await;
    let monitor = Monitor::start(server.port()).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(monitor.sent().await, Vec::<String>::new());
}
