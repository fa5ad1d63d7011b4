//! A Rust client and a Java process with the real Redisson on the same keys, both ways.
//!
//! The Redisson is the one named in tests/java/pom.xml, or `REDISSON_VERSION`. Without Java and Maven every test here is
//! skipped, with one line on stderr; in CI they have to run.

mod common;
#[path = "common/java.rs"]
mod java;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use redisson_lock::{Error, HoldEnd, LockClient, LockInfo, LostReason, NotHeld};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

use common::TestServer;
use java::JavaPeer;

/// The lease of a watched hold, on both sides.
const WATCHDOG: Duration = Duration::from_secs(3);
/// A lease that nobody waits out: whoever is granted the lock earlier was woken.
const LONG: &str = "30000";
const LONG_LEASE: Duration = Duration::from_secs(30);
/// What a wake-up may take.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A server, a Redisson and a Rust client that know of nobody else.
struct Scene {
    client: LockClient,
    java: JavaPeer,
    server: TestServer,
    _turn: SemaphorePermit<'static>,
}

/// Two scenes at a time: each is a JVM and a server. `of_two` 2 has the machine to itself.
async fn scene(of_two: u32) -> Option<Scene> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    let turn = TURNS.acquire_many(of_two).await.unwrap();
    let server = TestServer::own().await;
    let java = JavaPeer::start(server.url(), WATCHDOG.as_millis() as u64).await?;
    let client = rust_client(server.url()).await;
    Some(Scene { client, java, server, _turn: turn })
}

async fn rust_client(url: &str) -> LockClient {
    LockClient::builder().url(url).watchdog_timeout(WATCHDOG).connect().await.expect("connect")
}

/// How long after `then` an event was, by the wall clock that all processes here share. Zero if it was earlier.
fn after(then: SystemTime, event: SystemTime) -> Duration {
    event.duration_since(then).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_and_java_exclude_each_other() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };

    let lock = client.get_lock("rust-first");
    let guard = lock.lock().await.unwrap();
    assert!(!java.ask("t1", "tryLock rust-first").await.yes());
    let waited = java.ask("t1", "tryLock rust-first 700").await;
    assert!(!waited.yes());
    assert!((650..1_500).contains(&waited.elapsed().as_millis()), "tryLock(700 ms) took {:?}", waited.elapsed());
    guard.unlock().await.unwrap();
    assert!(java.ask("t1", "tryLock rust-first").await.yes());
    java.ask("t1", "unlock rust-first").await.value();

    let lock = client.get_lock("java-first");
    java.ask("t1", "lock java-first").await.value();
    assert!(lock.try_lock().await.unwrap().is_none());
    let asked = Instant::now();
    assert!(lock.try_lock_for(Duration::from_millis(700)).await.unwrap().is_none());
    let waited = asked.elapsed();
    assert!((650..1_500).contains(&waited.as_millis()), "try_lock_for(700 ms) took {waited:?}");
    java.ask("t1", "unlock java-first").await.value();
    let guard = lock.try_lock().await.unwrap().expect("free");
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_java_waiter_is_woken_by_a_rust_release_within_a_second() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    let lock = client.get_lock("k").with_lease(LONG_LEASE);

    for (round, command) in ["lock k 30000", "lock k", "tryLock k 20000 30000", "tryLock k 20000 -1"].iter().enumerate()
    {
        let guard = lock.lock().await.unwrap();
        let mut waiter = java.send("t1", command).await;
        assert!(waiter.is_pending_for(Duration::from_millis(500)).await, "{command}: not excluded");
        let released = SystemTime::now();
        // A drop wakes as an unlock does.
        if round % 2 == 0 {
            guard.unlock().await.unwrap();
        } else {
            drop(guard);
        }
        let granted = waiter.result(Duration::from_secs(10)).await;
        assert_ne!(granted.value(), &json!(false), "{command}");
        let took = after(released, granted.ended_at());
        assert!(took < AT_ONCE, "{command}: granted {took:?} after the release");
        java.ask("t1", "unlock k").await.value();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_waiter_is_woken_by_a_java_release_within_a_second() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };

    for round in 0..4 {
        java.ask("t1", "hold-until-told k 30000").await.value();
        let lock = client.get_lock("k");
        let waiter = tokio::spawn(async move {
            let guard = match round {
                0 => lock.lock().await.unwrap(),
                1 => lock.with_lease(LONG_LEASE).lock().await.unwrap(),
                2 => lock.try_lock_for(LONG_LEASE).await.unwrap().expect("granted"),
                _ => lock.with_lease(LONG_LEASE).try_lock_for(LONG_LEASE).await.unwrap().expect("granted"),
            };
            let granted = SystemTime::now();
            guard.unlock().await.unwrap();
            granted
        });
        sleep(Duration::from_millis(500)).await;
        assert!(!waiter.is_finished(), "round {round}: not excluded");
        let released = java.ask("t1", "tell").await;
        released.value();
        let granted = timeout(Duration::from_secs(10), waiter).await.expect("granted").unwrap();
        let took = after(released.ended_at(), granted);
        assert!(took < AT_ONCE, "round {round}: granted {took:?} after the release");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_sees_the_hold_count_and_the_ttl_of_rust() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    let lock = client.get_lock("k").with_lease(LONG_LEASE);

    let outer = lock.lock().await.unwrap();
    let holders = java.ask("t1", "holders k").await;
    let holders = holders.value().as_object().unwrap();
    let (holder, count) = holders.iter().next().expect("a holder");
    assert_eq!((holders.len(), count), (1, &json!(1)));
    let (uuid, thread) = holder.split_once(':').expect("<uuid>:<thread id>");
    assert_eq!(uuid, client.id());
    assert!(uuid.len() == 36 && thread.parse::<i64>().is_ok_and(|id| id >= 1), "{holder}");

    let inner = lock.lock().await.unwrap();
    assert_eq!(java.ask("t1", "holders k").await.value(), &json!({ holder: 2 }));
    assert!(java.ask("t1", "isLocked k").await.yes());
    assert!(!java.ask("t1", "isHeld k").await.yes());
    assert_eq!(java.ask("t1", "holdCount k").await.number(), 0, "getHoldCount() is the caller's own");
    let ttl = java.ask("t1", "remainTimeToLive k").await.number();
    assert!((20_000..=30_000).contains(&ttl), "{ttl}");

    inner.unlock().await.unwrap();
    assert_eq!(java.ask("t1", "holders k").await.value(), &json!({ holder: 1 }));
    outer.unlock().await.unwrap();
    assert_eq!(java.ask("t1", "holders k").await.value(), &json!({}));
    assert!(!java.ask("t1", "isLocked k").await.yes());
    assert_eq!(java.ask("t1", "remainTimeToLive k").await.number(), -2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_sees_the_hold_count_and_the_ttl_of_java() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    let lock = client.get_lock("k");
    let holder = java.ask("t1", "id").await;
    let holder = holder.value().as_str().unwrap();

    for count in 1..=2 {
        java.ask("t1", &format!("lock k {LONG}")).await.value();
        let seen = lock.inspect().await.unwrap();
        assert_eq!(held_by(&seen), [(holder, count, false)]);
        let ttl = seen.remaining_lease.expect("a TTL");
        assert!(ttl <= LONG_LEASE && ttl > LONG_LEASE * 2 / 3, "{ttl:?}");
    }
    assert!(lock.is_locked().await.unwrap());
    assert!(!lock.is_held().await.unwrap());
    assert_eq!(lock.hold_count().await.unwrap(), 0, "hold_count() is the caller's own");
    let ttl = lock.remaining_lease().await.unwrap().expect("a TTL");
    assert!(ttl <= LONG_LEASE && ttl > LONG_LEASE * 2 / 3, "{ttl:?}");

    let mut waiter = java.send("t2", "tryLock k 20000").await;
    assert!(waiter.is_pending_for(Duration::from_millis(300)).await);
    assert_eq!(lock.inspect().await.unwrap().subscribers, Some(1), "one waiting process");

    java.ask("t1", "unlock k").await.value();
    assert_eq!(held_by(&lock.inspect().await.unwrap()), [(holder, 1, false)]);
    java.ask("t1", "unlock k").await.value();
    assert!(waiter.result(AT_ONCE).await.yes());
    java.ask("t2", "unlock k").await.value();
    assert!(lock.inspect().await.unwrap().holders.is_empty());
    assert!(!lock.is_locked().await.unwrap());
}

fn held_by(info: &LockInfo) -> Vec<(&str, u64, bool)> {
    info.holders.iter().map(|holder| (&*holder.field, holder.count, holder.ours)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reentry_and_unlock_do_not_cross_processes() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    let lock = client.get_lock("rust");
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    // The first thread ids of a JVM and of a Rust client are small numbers and may well meet: only the client ids part them.
    for thread in ["t1", "t2", "t3", "t4"] {
        assert!(!java.ask(thread, "tryLock rust").await.yes());
        assert_eq!(java.ask(thread, "unlock rust").await.exception(), Some("java.lang.IllegalMonitorStateException"));
    }
    assert!(!outer.is_lost() && !inner.is_lost());
    inner.unlock().await.unwrap();
    assert!(!java.ask("t1", "tryLock rust").await.yes());
    outer.unlock().await.unwrap();
    assert!(java.ask("t1", "tryLock rust").await.yes());

    let lock = client.get_lock("java");
    java.ask("t1", "lock java").await.value();
    java.ask("t1", "lock java").await.value();
    assert!(lock.try_lock().await.unwrap().is_none());
    let refused = lock.unlock().await.unwrap_err();
    assert!(matches!(&refused, Error::NotHeld { why: NotHeld::Never, .. }), "{refused:?}");
    java.ask("t1", "unlock java").await.value();
    assert!(lock.try_lock().await.unwrap().is_none());
    java.ask("t1", "unlock java").await.value();
    lock.try_lock().await.unwrap().expect("free").unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdogs_of_both_sides_keep_a_three_second_lease_for_ten_seconds() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    let guard = client.get_lock("rust").lock().await.unwrap();
    java.ask("t1", "lock java").await.value();
    let before = (java.ask("t2", "holders rust").await, java.ask("t2", "holders java").await);

    let javas = client.get_lock("java");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        for key in ["rust", "java"] {
            let ttl = java.ask("t2", &format!("remainTimeToLive {key}")).await.number();
            assert!((1..=3_000).contains(&ttl), "TTL of {key} after {:?}: {ttl}", start.elapsed());
        }
        assert!(!java.ask("t2", "tryLock rust").await.yes(), "after {:?}", start.elapsed());
        assert!(javas.try_lock().await.unwrap().is_none(), "after {:?}", start.elapsed());
        assert!(!guard.is_lost());
        sleep(Duration::from_millis(100)).await;
    }

    assert_eq!(java.ask("t2", "holders rust").await.value(), before.0.value());
    assert_eq!(java.ask("t2", "holders java").await.value(), before.1.value());
    guard.unlock().await.unwrap();
    java.ask("t1", "unlock java").await.value();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_gets_the_lock_of_a_killed_rust_holder_when_its_lease_ends() {
    let Some(Scene { java, server, .. }) = &scene(1).await else { return };
    let mut holder = RustHolder::start(server.url(), "k");
    let mut waiter = java.send("t1", "lock k").await;
    // Longer than the lease: the holder's watchdog is at work.
    assert!(waiter.is_pending_for(WATCHDOG + AT_ONCE).await, "not excluded");
    let killed = SystemTime::now();
    holder.kill9();
    let granted = waiter.result(WATCHDOG + Duration::from_secs(10)).await;
    granted.value();
    expired_not_released(after(killed, granted.ended_at()));
    java.ask("t1", "unlock k").await.value();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_gets_the_lock_of_a_killed_java_holder_when_its_lease_ends() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    java.ask("t1", "lock k").await.value();
    let lock = client.get_lock("k");
    let waiter = tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        let granted = SystemTime::now();
        guard.unlock().await.unwrap();
        granted
    });
    sleep(WATCHDOG + AT_ONCE).await;
    assert!(!waiter.is_finished(), "not excluded");
    let killed = SystemTime::now();
    java.kill9();
    let granted = timeout(WATCHDOG + Duration::from_secs(10), waiter).await.expect("granted").unwrap();
    expired_not_released(after(killed, granted));
}

/// The last renewal was at most a third of the lease before the death; the rest has to be waited out, and not much more.
#[track_caller]
fn expired_not_released(took: Duration) {
    assert!(took > WATCHDOG / 2, "granted {took:?} after the holder's death: before its lease had ended");
    assert!(took < WATCHDOG + AT_ONCE, "granted {took:?} after the holder's death");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_guard_is_told_of_a_force_unlock_by_java_within_one_renewal_period() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    let lock = client.get_lock("k");
    for round in 0..3 {
        let outer = lock.lock().await.unwrap();
        let inner = lock.lock().await.unwrap();
        // At different times of the period.
        sleep(Duration::from_millis(1_000 + 300 * round)).await;
        assert!(!outer.is_lost() && !inner.is_lost());
        let forced = java.ask("t1", "forceUnlock k").await;
        assert!(forced.yes());
        let end = timeout(WATCHDOG, outer.lost()).await.expect("told before the deadline");
        let took = after(forced.ended_at(), SystemTime::now());
        assert_eq!(end, HoldEnd::Lost(LostReason::Gone));
        // A little for the renewal itself, and for a machine that is busy with other tests.
        assert!(took < WATCHDOG / 3 + Duration::from_millis(250), "told {took:?} after forceUnlock");
        assert!(outer.is_lost() && inner.is_lost(), "all guards of a hold are lost together");

        // What is lost is not taken from whoever has it now.
        assert!(java.ask("t1", "tryLock k").await.yes());
        assert!(matches!(inner.unlock().await, Err(Error::Lost(_))));
        drop(outer);
        sleep(Duration::from_millis(100)).await;
        assert!(java.ask("t1", "isHeld k").await.yes());
        java.ask("t1", "unlock k").await.value();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_unlock_by_rust_frees_a_java_waiter_at_once() {
    let Some(Scene { client, java, .. }) = &scene(1).await else { return };
    let lock = client.get_lock("k");
    for holder in ["java", "rust"] {
        let guard = if holder == "java" {
            java.ask("t1", &format!("lock k {LONG}")).await.value();
            None
        } else {
            Some(lock.with_lease(LONG_LEASE).lock().await.unwrap())
        };
        let mut waiter = java.send("t2", &format!("lock k {LONG}")).await;
        assert!(waiter.is_pending_for(Duration::from_millis(500)).await, "not excluded by {holder}");
        let forced = SystemTime::now();
        assert!(lock.force_unlock().await.unwrap());
        let granted = waiter.result(Duration::from_secs(10)).await;
        granted.value();
        let took = after(forced, granted.ended_at());
        assert!(took < AT_ONCE, "taken from {holder}: granted {took:?} after force_unlock");

        match guard {
            // This client's own doing, so the guard need not wait for its lease to learn of it; and its release leaves the
            // new holder alone.
            Some(guard) => {
                assert_eq!(timeout(AT_ONCE, guard.lost()).await, Ok(HoldEnd::Lost(LostReason::Gone)));
                drop(guard);
            }
            None => {
                assert_eq!(java.ask("t1", "unlock k").await.exception(), Some("java.lang.IllegalMonitorStateException"))
            }
        }
        sleep(Duration::from_millis(100)).await;
        assert!(java.ask("t2", "isHeld k").await.yes());
        java.ask("t2", "unlock k").await.value();
    }
    assert!(!lock.force_unlock().await.unwrap(), "nothing to force");
}

/// Share: with 66 contenders each would get 1/66 if they were served in turn. A Java thread that is half as lucky is
/// content; one that waits for two seconds, while sections take a fraction of a millisecond, is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_java_threads_among_64_rust_tasks_get_their_share() {
    const TASKS: u64 = 64;
    const FOR: Duration = Duration::from_secs(6);
    let Some(Scene { client, java, server, .. }) = &scene(2).await else { return };
    let probe = Arc::new(server.probe().await);

    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (lock, probe, over) = (client.get_lock("k"), probe.clone(), over.clone());
            tokio::spawn(async move {
                let mut done = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    let guard = lock.lock().await.unwrap();
                    let count: u64 = probe.get("counter").await.map_or(0, |count| count.parse().unwrap());
                    probe.set("counter", &(count + 1).to_string()).await;
                    guard.unlock().await.unwrap();
                    done += 1;
                }
                done
            })
        })
        .collect();
    let command = format!("race k counter 0 {}", FOR.as_millis());
    let (mut first, mut second) = (java.send("t1", &command).await, java.send("t2", &command).await);
    let javas = [first.result(FOR * 5).await, second.result(FOR * 5).await];
    over.store(true, Ordering::Relaxed);

    let mut rust = Vec::new();
    for task in tasks {
        rust.push(timeout(Duration::from_secs(30), task).await.expect("a task ends").unwrap());
    }
    let java_done = javas.each_ref().map(|race| race.value()["done"].as_u64().unwrap());
    let longest = javas.each_ref().map(|race| race.value()["longestWaitMs"].as_f64().unwrap());
    let rust_done: u64 = rust.iter().sum();
    let total = rust_done + java_done.iter().sum::<u64>();
    println!("{total} sections: {java_done:?} in Java (longest wait {longest:?} ms), {rust_done} in Rust");

    let counter: u64 = probe.get("counter").await.expect("a counter").parse().unwrap();
    assert_eq!(counter, total, "sections overlapped");
    let share = total / (TASKS + 2) / 2;
    for done in java_done {
        assert!(done >= share, "{done} of {total} sections for a Java thread; its share is {share}");
    }
    for wait in longest {
        assert!(wait < 2_000.0, "a Java thread waited {wait} ms");
    }
    assert!(rust.iter().all(|&done| done > 0), "a Rust task was never served: {rust:?}");
}

/// A process of its own that holds a lock until it is killed: this test binary, running one test of it.
struct RustHolder(Child);

const HOLDER_URL: &str = "REDISSON_LOCK_TEST_HOLDER_URL";
const HOLDER_KEY: &str = "REDISSON_LOCK_TEST_HOLDER_KEY";

impl RustHolder {
    /// Returns when it holds.
    fn start(url: &str, key: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_that_holds_a_lock_until_it_is_killed", "--ignored", "--nocapture"])
            .env(HOLDER_URL, url)
            .env(HOLDER_KEY, key)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a holder");
        let output = BufReader::new(child.stdout.take().unwrap());
        let holder = RustHolder(child);
        for line in output.lines().map_while(Result::ok) {
            if line.contains("HOLDING") {
                return holder;
            }
        }
        panic!("the holder ended before it held the lock");
    }

    fn kill9(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for RustHolder {
    fn drop(&mut self) {
        self.kill9();
    }
}

#[test]
#[ignore = "not a test: started by others, as a process to kill"]
fn a_process_that_holds_a_lock_until_it_is_killed() {
    let (Ok(url), Ok(key)) = (std::env::var(HOLDER_URL), std::env::var(HOLDER_KEY)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = rust_client(&url).await;
        let _guard = client.get_lock(key).lock().await.unwrap();
        println!("HOLDING");
        // Not for ever, should the one who wanted to kill it be killed first.
        sleep(Duration::from_secs(60)).await;
    });
}
