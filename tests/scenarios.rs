//! What users do with a lock, from beginning to end.
#![allow(missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::{Monitor, TestServer, eventually};
use redisson_lock::{Error, HoldEnd, LockClient, LostReason, NotHeld, Owner};

const MS: Duration = Duration::from_millis(1);

async fn connect(url: &str) -> LockClient {
    LockClient::connect(url).await.unwrap()
}

async fn watched(url: &str, timeout: Duration) -> LockClient {
    LockClient::builder().url(url).watchdog_timeout(timeout).connect().await.unwrap()
}

/// What was sent about locks. Scripts may still be loaded in the background when a client is connected.
async fn sent(monitor: &Monitor) -> Vec<String> {
    monitor.sent().await.into_iter().filter(|name| !["SCRIPT", "CLIENT"].contains(&name.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_three_times_the_watchdog_timeout_keeps_its_lock_and_a_waiter_gets_it_right_after() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let watch = 1_500 * MS;
    let (a, b) = (watched(server.url(), watch).await, watched(server.url(), watch).await);
    let guard = a.get_lock("job").lock().await.unwrap();
    let waiter = tokio::spawn({
        let lock = b.get_lock("job");
        async move {
            let guard = lock.lock().await.unwrap();
            (Instant::now(), guard)
        }
    });
    let end = Instant::now() + 3 * watch;
    while Instant::now() < end {
        let ttl = probe.pttl("job").await;
        assert!(ttl > 500, "{ttl} ms left");
        assert!(!guard.is_lost() && !waiter.is_finished());
        tokio::time::sleep(20 * MS).await;
    }
    assert!(a.stats().renewals >= 6, "{:?}", a.stats());
    guard.unlock().await.unwrap();
    let unlocked = Instant::now();
    let (got_at, next) = waiter.await.unwrap();
    assert!(got_at.saturating_duration_since(unlocked) < 300 * MS, "{:?}", got_at - unlocked);
    next.unlock().await.unwrap();
    assert!(!probe.exists("job").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn re_entry_three_deep_is_counted_in_redis() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = connect(server.url()).await;
    let lock = client.get_lock("deep");
    let one = lock.lock().await.unwrap();
    assert_eq!(probe.count("deep").await, 1);
    let two = lock.try_lock().await.unwrap().expect("re-entry");
    assert_eq!(probe.count("deep").await, 2);
    let three = lock.try_lock_for(Duration::from_secs(1)).await.unwrap().expect("re-entry");
    assert_eq!(probe.count("deep").await, 3);
    assert_eq!(lock.hold_count().await.unwrap(), 3);
    assert!(probe.hgetall("deep").await.keys().all(|field| field.starts_with(&format!("{}:", client.id()))));
    // In any order, and the last one frees it.
    one.unlock().await.unwrap();
    assert_eq!(probe.count("deep").await, 2);
    three.unlock().await.unwrap();
    assert_eq!(probe.count("deep").await, 1);
    assert!(!two.is_lost());
    two.unlock().await.unwrap();
    assert!(!probe.exists("deep").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_non_reentrant_handle_does_not_re_enter() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let lock = client.get_lock("k").non_reentrant();
    let guard = lock.lock().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(lock.try_lock_for(100 * MS).await.unwrap().is_none());
    guard.unlock().await.unwrap();
    lock.try_lock().await.unwrap().expect("free").unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_three_seconds_on_a_held_lock_returns_in_three_seconds() {
    let server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let guard = a.get_lock("k").lock().await.unwrap();
    let wait = Duration::from_secs(3);
    let start = Instant::now();
    assert!(b.get_lock("k").try_lock_for(wait).await.unwrap().is_none());
    let took = start.elapsed();
    assert!(took >= wait && took < wait + 500 * MS, "{took:?}");
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_lease_hands_the_lock_over() {
    let server = TestServer::own().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let start = Instant::now();
    let first = a.get_lock("k").with_lease(Duration::from_secs(1)).lock().await.unwrap();
    let second = b.get_lock("k").lock().await.unwrap();
    let took = start.elapsed();
    assert!(took >= 990 * MS && took < 1_500 * MS, "{took:?}");
    assert!(first.is_lost());
    assert_eq!(first.remaining(), Duration::ZERO);
    assert_eq!(first.lost().await, HoldEnd::Lost(LostReason::Expired));
    assert!(!second.is_lost());
    second.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_wakes_a_waiter_at_once_and_the_former_holder_is_told() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (a, b, operator) =
        (watched(server.url(), Duration::from_secs(3)).await, connect(server.url()).await, connect(server.url()).await);
    let guard = a.get_lock("k").lock().await.unwrap();
    let waiter = tokio::spawn({
        let lock = b.get_lock("k");
        async move { lock.lock().await.unwrap() }
    });
    eventually(Duration::from_secs(2), "subscribed", || async {
        probe.numsub("redisson_lock__channel:{k}").await == 1
    })
    .await;
    let start = Instant::now();
    assert!(operator.get_lock("k").force_unlock().await.unwrap());
    let next = waiter.await.unwrap();
    assert!(start.elapsed() < 500 * MS, "{:?}", start.elapsed());
    let end = tokio::time::timeout(1_300 * MS, guard.lost()).await.expect("told within a renewal period");
    assert_eq!(end, HoldEnd::Lost(LostReason::Gone));
    assert!(matches!(guard.unlock().await, Err(Error::Lost(_))));
    assert_eq!(probe.count("k").await, 1);
    next.unlock().await.unwrap();
    assert!(!operator.get_lock("k").force_unlock().await.unwrap(), "there was nothing to remove");
}

#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_by_the_holders_own_client_tells_the_guard_at_once() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    assert!(client.get_lock("k").force_unlock().await.unwrap());
    // Far below the renewal period of 10 s.
    let end = tokio::time::timeout(Duration::from_secs(1), guard.lost()).await.expect("told at once");
    assert_eq!(end, HoldEnd::Lost(LostReason::Gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maximum_hold_ends_the_hold_and_the_guard_says_so() {
    let server = TestServer::own().await;
    let client = watched(server.url(), 600 * MS).await;
    let start = Instant::now();
    let guard = client.get_lock("k").with_max_hold(Duration::from_secs(1)).lock().await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await.expect("it ends");
    assert_eq!(end, HoldEnd::Lost(LostReason::Expired));
    let took = start.elapsed();
    assert!(took >= 1_000 * MS && took < 1_900 * MS, "{took:?}");
    let other = client.get_lock("k").with_owner(Owner::new());
    let next = other.try_lock_for(Duration::from_secs(1)).await.unwrap().expect("free");
    next.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_questions_are_answered_from_the_server() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (a, b) = (watched(server.url(), Duration::from_secs(20)).await, connect(server.url()).await);
    let (ours, theirs) = (a.get_lock("k"), b.get_lock("k"));
    assert!(!ours.is_locked().await.unwrap());
    assert!(!ours.is_held().await.unwrap());
    assert_eq!(ours.hold_count().await.unwrap(), 0);
    assert_eq!(ours.remaining_lease().await.unwrap(), None);
    let info = ours.inspect().await.unwrap();
    assert!(info.holders.is_empty() && info.remaining_lease.is_none(), "{info:?}");

    let guard = ours.lock().await.unwrap();
    let nested = ours.lock().await.unwrap();
    for lock in [&ours, &theirs] {
        assert!(lock.is_locked().await.unwrap());
        let left = lock.remaining_lease().await.unwrap().expect("held");
        assert!(left > Duration::from_secs(15) && left <= Duration::from_secs(20), "{left:?}");
    }
    assert!(ours.is_held().await.unwrap());
    assert!(ours.is_held_by(guard.owner()).await.unwrap());
    assert!(!ours.is_held_by(Owner::new()).await.unwrap());
    assert!(!theirs.is_held().await.unwrap());
    assert!(!theirs.is_held_by(guard.owner()).await.unwrap());
    assert_eq!((ours.hold_count().await.unwrap(), theirs.hold_count().await.unwrap()), (2, 0));

    let waiter = tokio::spawn({
        let lock = theirs.clone();
        async move { lock.lock().await.unwrap() }
    });
    eventually(Duration::from_secs(2), "subscribed", || async {
        probe.numsub("redisson_lock__channel:{k}").await == 1
    })
    .await;
    let field = probe.hgetall("k").await.into_keys().next().unwrap();
    for (lock, is_ours) in [(&ours, true), (&theirs, false)] {
        let info = lock.inspect().await.unwrap();
        let [holder] = info.holders.as_slice() else { panic!("{info:?}") };
        assert_eq!((&*holder.field, holder.count, holder.ours), (field.as_str(), 2, is_ours));
        assert!(info.remaining_lease.is_some_and(|left| left > Duration::from_secs(15)), "{info:?}");
        assert_eq!(info.subscribers, Some(1));
    }
    // A key that somebody made without a time to live.
    probe.cmd(&["HSET", "endless", "stranger:1", "1"]).await;
    assert_eq!(a.get_lock("endless").remaining_lease().await.unwrap(), Some(Duration::MAX));
    assert!(a.get_lock("endless").try_lock().await.unwrap().is_none());

    drop((nested, guard));
    waiter.await.unwrap().unlock().await.unwrap();
    assert!(!ours.is_locked().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn extend_only_raises() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), Duration::from_secs(3)).await;
    for lock in [client.get_lock("watched"), client.get_lock("leased").with_lease(Duration::from_secs(5))] {
        let guard = lock.lock().await.unwrap();
        guard.extend(Duration::from_secs(60)).await.unwrap();
        assert!(probe.pttl(lock.name()).await > 55_000);
        assert!(guard.remaining() > Duration::from_secs(55));
        guard.extend(Duration::from_secs(10)).await.unwrap();
        assert!(probe.pttl(lock.name()).await > 55_000, "shortened");
        assert!(guard.remaining() > Duration::from_secs(55));
        guard.unlock().await.unwrap();
    }
    // Neither does the watchdog's next renewal shorten it.
    let guard = client.get_lock("watched").lock().await.unwrap();
    guard.extend(Duration::from_secs(60)).await.unwrap();
    let renewals = client.stats().renewals;
    eventually(Duration::from_secs(3), "renewed", || async { client.stats().renewals > renewals }).await;
    assert!(probe.pttl("watched").await > 50_000);
    for bad in [Duration::ZERO, Duration::MAX] {
        assert!(matches!(guard.extend(bad).await, Err(Error::InvalidDuration { .. })));
    }
    assert!(!guard.is_lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn run_ends_with_its_future_and_drops_it_when_the_lock_is_lost() {
    struct SaysWhenDropped(Option<tokio::sync::oneshot::Sender<()>>);
    impl Drop for SaysWhenDropped {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), 600 * MS).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    assert_eq!(guard.run(async { 42 }).await.unwrap(), 42);

    let (sender, dropped) = tokio::sync::oneshot::channel();
    let work = async move {
        let _says = SaysWhenDropped(Some(sender));
        std::future::pending::<()>().await;
    };
    assert!(probe.del("k").await);
    let lost = tokio::time::timeout(Duration::from_secs(2), guard.run(work)).await.expect("told").unwrap_err();
    assert_eq!(lost.reason, LostReason::Gone);
    assert_eq!((&*lost.lock, lost.owner), ("k", guard.owner()));
    dropped.await.unwrap();
    // A lost guard does not even begin.
    let never = guard.run(async { panic!("polled without the lock") }).await;
    assert!(never.is_err_and(|lost| lost.reason == LostReason::Gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_or_a_mapper_makes_the_key_and_the_channel() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let settings = LockClient::builder().url(server.url());
    let prefixed = settings.clone().key_prefix("app:").connect().await.unwrap();
    let mapped = settings.name_mapper(|name| format!("app:{}", name.to_lowercase())).connect().await.unwrap();
    let lock = prefixed.get_lock("order");
    let guard = lock.lock().await.unwrap();
    assert_eq!((lock.name(), guard.name()), ("order", "order"));
    assert_eq!(probe.count("app:order").await, 1);
    assert!(!probe.exists("order").await);
    // The two are one lock, and they meet on one channel.
    assert!(mapped.get_lock("ORDER").try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let lock = mapped.get_lock("Order");
        async move { lock.lock().await.unwrap() }
    });
    eventually(Duration::from_secs(2), "subscribed", || async {
        probe.numsub("redisson_lock__channel:{app:order}").await == 1
    })
    .await;
    guard.unlock().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(1), waiter).await.expect("woken").unwrap();
    assert_eq!(probe.count("app:order").await, 1);
    next.unlock().await.unwrap();
    assert_eq!(probe.dbsize().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unlock_without_a_guard_releases_forgotten_holds_only() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = connect(server.url()).await;
    let owner = Owner::new();
    let lock = client.get_lock("k").with_owner(owner);
    let monitor = Monitor::start(server.port()).await;
    assert!(matches!(lock.unlock().await, Err(Error::NotHeld { why: NotHeld::Never, .. })));
    assert!(sent(&monitor).await.is_empty());

    let guard = lock.lock().await.unwrap();
    assert!(!sent(&monitor).await.is_empty());
    monitor.clear();
    match lock.unlock().await {
        Err(Error::HeldByGuard { lock, owner: by }) => assert_eq!((&*lock, by), ("k", owner)),
        other => panic!("{other:?}"),
    }
    assert!(sent(&monitor).await.is_empty());
    assert_eq!(probe.count("k").await, 1);

    // One guarded and two forgotten: two unlocks, then only the guard is left.
    assert_eq!(lock.lock().await.unwrap().forget(), owner);
    assert_eq!(lock.lock().await.unwrap().forget(), owner);
    assert_eq!(probe.count("k").await, 3);
    lock.unlock().await.unwrap();
    assert_eq!(probe.count("k").await, 2);
    lock.unlock().await.unwrap();
    assert_eq!(probe.count("k").await, 1);
    assert!(matches!(lock.unlock().await, Err(Error::HeldByGuard { .. })));
    // A forgotten one outlives the guard.
    lock.lock().await.unwrap().forget();
    guard.unlock().await.unwrap();
    assert_eq!(probe.count("k").await, 1);
    lock.unlock().await.unwrap();
    assert!(!probe.exists("k").await);
    assert!(matches!(lock.unlock().await, Err(Error::NotHeld { why: NotHeld::Never, .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_hold_is_renewed_and_its_unlock_says_when_it_was_lost() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = watched(server.url(), 600 * MS).await;
    let lock = client.get_lock("k").with_owner(Owner::new());
    lock.lock().await.unwrap().forget();
    let renewals = client.stats().renewals;
    eventually(Duration::from_secs(4), "renewed for three leases", || async {
        client.stats().renewals >= renewals + 9
    })
    .await;
    assert_eq!(probe.count("k").await, 1);
    assert!(probe.del("k").await);
    eventually(Duration::from_secs(1), "the loss is seen", || async { client.stats().lost == 1 }).await;
    assert!(matches!(lock.unlock().await, Err(Error::NotHeld { why: NotHeld::Expired, .. })));
    assert!(matches!(lock.unlock().await, Err(Error::NotHeld { why: NotHeld::Never, .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_hold_is_told_to_everybody_who_listens() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    let (one, two) = (guard.lost(), guard.lost().clone());
    guard.unlock().await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(1), async { (one.await, two.await) }).await;
    assert_eq!(told.expect("a listener hangs after a normal unlock"), (HoldEnd::Released, HoldEnd::Released));
}
