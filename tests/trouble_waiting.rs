//! Public troubles with messages and waiters, as tests.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::dice::Dice;
use common::{Probe, TestServer, eventually, long};
use redisson_lock::{Error, LockClient, LockGuard};

const MS: Duration = Duration::from_millis(1);

async fn connect(url: &str) -> LockClient {
    LockClient::connect(url).await.unwrap()
}

fn channel(key: &str) -> String {
    format!("redisson_lock__channel:{{{key}}}")
}

/// A task that waits for `key`.
fn wait(client: &LockClient, key: &str) -> tokio::task::JoinHandle<LockGuard> {
    let lock = client.get_lock(key);
    tokio::spawn(async move { lock.lock().await.unwrap() })
}

// T29
#[tokio::test(flavor = "multi_thread")]
async fn a_release_at_any_moment_around_the_subscription_hands_over_at_once() {
    let server = TestServer::own().await;
    let a = connect(server.url()).await;
    // Without the safety net: a missed message would cost a whole lease.
    let net = Duration::from_secs(60);
    let b = LockClient::builder().url(server.url()).recheck_interval(net).connect().await.unwrap();
    let mut dice = Dice(29);
    for round in 0..if long() { 10_000 } else { 300 } {
        // A name of its own, so that it has to be subscribed.
        let key = format!("k:{round}");
        let guard = a.get_lock(&key).lock().await.unwrap();
        let waiter = wait(&b, &key);
        tokio::time::sleep(Duration::from_micros(dice.below(5_000))).await;
        let start = Instant::now();
        guard.unlock().await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(5), waiter).await.expect("a message was missed").unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "round {round}: {:?}", start.elapsed());
        next.unlock().await.unwrap();
    }
}

// T32
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_contended_names_need_no_more_connections_than_one() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let names = if long() { 10_000 } else { 1_000 };
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for n in 0..names {
        guards.push(a.get_lock(format!("k:{n}")).lock().await.unwrap());
        waiters.push(wait(&b, &format!("k:{n}")));
    }
    eventually(Duration::from_secs(30), "all are subscribed", || async { probe.channels().await.len() == names }).await;
    assert_eq!(probe.clients("pubsub").await.len(), 1);
    assert_eq!(probe.others().await.len(), 6);
    drop(guards);
    for waiter in waiters {
        let guard = tokio::time::timeout(Duration::from_secs(30), waiter).await.expect("handed over").unwrap();
        drop(guard);
    }
    eventually(Duration::from_secs(10), "no channel is left", || async { probe.channels().await.is_empty() }).await;
    eventually(Duration::from_secs(10), "no key is left", || async { probe.dbsize().await == 0 }).await;
}

// T33
#[tokio::test(flavor = "multi_thread")]
async fn waits_that_end_or_are_cancelled_during_subscribe_leave_no_channel_and_no_damage() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let guard = a.get_lock("k").lock().await.unwrap();
    let mut dice = Dice(33);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..1_000 {
        let lock = b.get_lock("k");
        let cancel = (n % 2 == 0).then(|| Duration::from_micros(dice.below(5_000)));
        tasks.spawn(async move {
            let waiting = lock.try_lock_for(5 * MS);
            let end = match cancel {
                Some(patience) => tokio::time::timeout(patience, waiting).await.unwrap_or(Ok(None)),
                None => waiting.await,
            };
            assert!(matches!(end, Ok(None) | Err(Error::Timeout { .. })), "{end:?}");
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    eventually(Duration::from_secs(5), "no channel is left", || async { probe.channels().await.is_empty() }).await;
    assert_eq!(b.stats().waiting, 0);
    // The name is not poisoned.
    let waiter = wait(&b, "k");
    eventually(Duration::from_secs(2), "subscribed again", || async { probe.numsub(&channel("k")).await == 1 }).await;
    let start = Instant::now();
    guard.unlock().await.unwrap();
    waiter.await.unwrap().unlock().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

// T34
#[tokio::test(flavor = "multi_thread")]
async fn a_release_while_the_subscription_is_down_hands_over_within_a_second_of_its_return() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let a = connect(server.url()).await;
    let net = Duration::from_secs(60);
    let b = LockClient::builder().url(server.url()).recheck_interval(net).connect().await.unwrap();
    for round in 0..if long() { 20 } else { 3 } {
        let key = format!("k:{round}");
        let guard = a.get_lock(&key).lock().await.unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let lock = b.get_lock(&key);
            waiters.spawn(async move { lock.lock().await.unwrap().unlock().await.unwrap() });
        }
        eventually(Duration::from_secs(5), "subscribed", || async { probe.numsub(&channel(&key)).await == 1 }).await;
        let mut killed = 0;
        for _ in 0..5 {
            tokio::time::sleep(100 * MS).await;
            killed += probe.client_kill("pubsub").await;
        }
        assert!(killed > 0);
        // In the gap.
        guard.unlock().await.unwrap();
        let start = Instant::now();
        tokio::time::timeout(Duration::from_secs(5), waiters.join_all()).await.expect("a waiter is deaf");
        assert!(start.elapsed() < 2 * Duration::from_secs(1), "round {round}: {:?}", start.elapsed());
    }
}

// T35
#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_may_not_subscribe_poll() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let a = connect(server.url()).await;
    probe.cmd(&["ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels"]).await;
    let deaf = connect(&server.url().replace("redis://", "redis://deaf:pw@")).await;
    for _ in 0..3 {
        let guard = a.get_lock("k").lock().await.unwrap();
        let waiter = wait(&deaf, "k");
        eventually(Duration::from_secs(2), "it waits", || async { deaf.stats().contended > 0 }).await;
        tokio::time::sleep(100 * MS).await;
        assert!(!waiter.is_finished());
        let start = Instant::now();
        guard.unlock().await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(5), waiter).await.expect("it polls").unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        next.unlock().await.unwrap();
    }
}

// T35
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_messages_are_dropped_looks_again_after_the_re_check_interval() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    // Whoever may not publish drops the message.
    probe.cmd(&["ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels"]).await;
    let mute = connect(&server.url().replace("redis://", "redis://mute:pw@")).await;
    let b = LockClient::builder().url(server.url()).recheck_interval(500 * MS).connect().await.unwrap();
    for _ in 0..3 {
        let guard = mute.get_lock("k").lock().await.unwrap();
        let waiter = wait(&b, "k");
        eventually(Duration::from_secs(2), "subscribed", || async { probe.numsub(&channel("k")).await == 1 }).await;
        let start = Instant::now();
        guard.unlock().await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(5), waiter).await.expect("it looks").unwrap();
        assert!(start.elapsed() < 1_200 * MS, "{:?}", start.elapsed());
        next.unlock().await.unwrap();
    }
    assert!(b.stats().repolls >= 1, "{:?}", b.stats());
}

// T36, scaled.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_served_to_the_last_and_costs_the_server_no_more_than_a_few_clients() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (crowd, clients, each) = if long() { (10_000, 10, 100) } else { (500, 4, 10) };
    let mut parties = vec![(connect(server.url()).await, crowd)];
    for _ in 0..clients {
        parties.push((connect(server.url()).await, each));
    }
    let first = connect(server.url()).await.get_lock("k").lock().await.unwrap();
    let served = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for (party, (client, many)) in parties.iter().enumerate() {
        for _ in 0..*many {
            let (lock, served) = (client.get_lock("k"), served.clone());
            tasks.spawn(async move {
                let guard = lock.lock().await.unwrap();
                let place = served.fetch_add(1, SeqCst);
                tokio::time::sleep(MS).await;
                guard.unlock().await.unwrap();
                (party, place)
            });
        }
    }
    let all = u64::from(crowd + clients * each);
    eventually(Duration::from_secs(10), "all wait", || async {
        parties.iter().map(|(client, _)| client.stats().waiting).sum::<u64>() == all
    })
    .await;
    let before = probe.calls("evalsha").await;
    drop(first);
    let mut firsts = vec![u32::MAX; parties.len()];
    let deadline = Instant::now() + Duration::from_secs(if long() { 300 } else { 60 });
    while let Some(done) = tasks.join_next().await {
        let (party, place) = done.unwrap();
        firsts[party] = firsts[party].min(place);
        assert!(Instant::now() < deadline, "served: {served:?} of {all}");
    }
    // A turn each, long before the crowd is through: nobody of the small parties starves behind the big one.
    assert!(firsts.iter().all(|place| *place < crowd / 2), "first places: {firsts:?}");
    // A pair for each hold, and an attempt of each client at most when it is told of a release.
    let scripts = probe.calls("evalsha").await - before;
    assert!(scripts < all * (2 + u64::from(clients) + 1), "{scripts} scripts for {all} holds");
}

// T37
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_lost_the_race_waits_on_until_its_own_end() {
    let server = TestServer::own().await;
    let port = server.port();
    let clients = [connect(server.url()).await, connect(server.url()).await, connect(server.url()).await];
    // Takes the lock anew in the very step in which it gives it back, so that every waiter is woken in vain.
    let cycles = tokio::spawn(async move {
        let probe = Probe::connect(port).await;
        let cycle = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'stranger:' .. ARGV[1], 1) \
                     redis.call('PEXPIRE', KEYS[1], 20000) return redis.call('PUBLISH', ARGV[2], '0')";
        let mut heard = 0;
        for n in 0..30 {
            heard += probe.cmd(&["EVAL", cycle, "1", "k", &n.to_string(), &channel("k")]).await.int();
            tokio::time::sleep(50 * MS).await;
        }
        heard
    });
    let probe = server.probe().await;
    eventually(Duration::from_secs(2), "held", || async { probe.exists("k").await }).await;
    let mut waits = tokio::task::JoinSet::new();
    for (n, client) in clients.iter().enumerate() {
        let lock = client.get_lock("k");
        waits.spawn(async move {
            // The last one has more patience than the stranger.
            let wait = if n == 2 { Duration::from_secs(20) } else { 1_000 * MS };
            let start = Instant::now();
            let end = lock.try_lock_for(wait).await.unwrap();
            (wait, start.elapsed(), end)
        });
    }
    assert!(cycles.await.unwrap() > 10, "nobody was woken");
    assert!(probe.del("k").await);
    probe.cmd(&["PUBLISH", &channel("k"), "0"]).await;
    let (mut in_vain, mut got) = (0, 0);
    while let Some(done) = waits.join_next().await {
        let (wait, took, end) = done.unwrap();
        match end {
            None => {
                assert!(took >= wait && took < wait + Duration::from_secs(1), "{took:?} of {wait:?}");
                in_vain += 1;
            }
            Some(guard) => {
                assert!(wait > Duration::from_secs(1), "a guard for a lock that was never free");
                assert_eq!(probe.count("k").await, 1);
                guard.unlock().await.unwrap();
                got += 1;
            }
        }
    }
    assert_eq!((in_vain, got), (2, 1));
}

// T41
#[tokio::test(flavor = "multi_thread")]
async fn commands_never_travel_on_a_subscribed_connection() {
    let server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..4 {
        let client = if n % 2 == 0 { a.clone() } else { b.clone() };
        tasks.spawn(async move {
            for round in 0..if long() { 1_000 } else { 100 } {
                // Few names, so that each is subscribed while it is used.
                let lock = client.get_lock(format!("k:{}", round % 3));
                let guard = lock.lock().await.unwrap();
                assert_eq!(lock.hold_count().await.unwrap(), 1);
                guard.unlock().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(a.stats().contended + b.stats().contended > 0, "nobody waited");
}

// T42
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_another_database_wake_nobody_into_a_lock_that_is_held() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let zero = connect(server.url()).await;
    let settings = LockClient::builder().url(server.url()).database(3);
    let (holder, waiting) = (settings.clone().connect().await.unwrap(), settings.connect().await.unwrap());
    let theirs = holder.get_lock("k").lock().await.unwrap();
    let waiter = tokio::spawn({
        let lock = waiting.get_lock("k");
        async move {
            let start = Instant::now();
            let end = lock.try_lock_for(1_500 * MS).await.unwrap();
            (end.is_some(), start.elapsed())
        }
    });
    eventually(Duration::from_secs(1), "subscribed", || async { probe.numsub(&channel("k")).await >= 1 }).await;
    for _ in 0..100 {
        zero.get_lock("k").lock().await.unwrap().unlock().await.unwrap();
        probe.cmd(&["PUBLISH", &channel("k"), "0"]).await;
    }
    let (got, took) = waiter.await.unwrap();
    assert!(!got, "a guard for a lock that is held");
    assert!(took >= 1_500 * MS && took < 2_500 * MS, "{took:?}");
    assert!(!theirs.is_lost());
    theirs.unlock().await.unwrap();
    assert_eq!(holder.stats().lost, 0);
}

// T43
#[tokio::test(flavor = "multi_thread")]
async fn foreign_messages_do_no_harm() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let guard = a.get_lock("k").lock().await.unwrap();
    let waiter = wait(&b, "k");
    eventually(Duration::from_secs(2), "subscribed", || async { probe.numsub(&channel("k")).await == 1 }).await;
    let big = "x".repeat(1 << 20);
    for payload in ["xyz", "", "1", "00", "-1", "\r\n", "\0\u{1}\u{7f}", "ünï", &big] {
        assert_eq!(probe.cmd(&["PUBLISH", &channel("k"), payload]).await.int(), 1, "{:.10?}", payload);
    }
    // Bytes that are no UTF-8.
    let binary = r"return redis.call('PUBLISH', ARGV[1], '\255\254\0\128')";
    assert_eq!(probe.cmd(&["EVAL", binary, "0", &channel("k")]).await.int(), 1);
    tokio::time::sleep(200 * MS).await;
    assert!(!waiter.is_finished());
    assert_eq!(probe.numsub(&channel("k")).await, 1, "the subscription did not survive");
    let start = Instant::now();
    guard.unlock().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(3), waiter).await.expect("it still hears").unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // To a holder, too.
    for payload in ["xyz", "0", "0", &big] {
        probe.cmd(&["PUBLISH", &channel("k"), payload]).await;
    }
    tokio::time::sleep(100 * MS).await;
    assert!(!next.is_lost());
    next.unlock().await.unwrap();
}
