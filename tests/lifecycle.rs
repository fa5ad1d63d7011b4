//! How clients, runtimes, threads and processes begin and end, and what becomes of the locks.
#![allow(missing_docs)]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use common::{Probe, TestServer, child, eventually};
use redisson_lock::{Error, HoldEnd, LockClient, LockGuard, LostReason, NotHeld, Owner, RLock};
use tokio::runtime::{Builder, Runtime};

const PROMPT: Duration = Duration::from_secs(5);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A server for a test that has no runtime of its own, and a runtime for the oracle alone.
fn outside() -> (Runtime, TestServer) {
    let runtime = multi_thread();
    let server = runtime.block_on(TestServer::own());
    (runtime, server)
}

async fn gone(probe: &Probe, key: &str, within: Duration) {
    eventually(within, &format!("{key} is gone"), || async { !probe.exists(key).await }).await;
}

async fn waiting(client: &LockClient, calls: u64) {
    eventually(PROMPT, "the calls are in the queue", || async { client.stats().waiting == calls }).await;
}

/// Whether it is still pending when everything has been done that can be done without it.
async fn still_waits<T>(call: &mut tokio::task::JoinHandle<T>) {
    assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err(), "it did not wait");
}

/// What `futures::executor::block_on` does, by hand: no runtime anywhere near.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                let left = deadline.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "nobody woke this thread");
                std::thread::park_timeout(left);
            }
        }
    }
}

// Runtimes.

#[test]
fn a_client_in_a_static_serves_every_runtime_after_the_first_has_ended() {
    static CLIENT: OnceLock<LockClient> = OnceLock::new();
    let (outside, server) = outside();
    let probe = outside.block_on(server.probe());
    let first = current_thread();
    first.block_on(async {
        let client = LockClient::connect(server.url()).await.unwrap();
        let lock = CLIENT.get_or_init(|| client).get_lock("static");
        lock.lock().await.unwrap().unlock().await.unwrap();
    });
    drop(first);

    let client = CLIENT.get().unwrap();
    for runtime in [current_thread(), multi_thread(), current_thread()] {
        runtime.block_on(async {
            let lock = client.get_lock("static");
            let guard = lock.lock().await.unwrap();
            assert_eq!(probe.count("static").await, 1);
            let other = lock.with_owner(Owner::new());
            assert!(other.try_lock().await.unwrap().is_none());
            // A waiter is served too, by a release on this very runtime.
            let waiter = tokio::spawn(async move { other.lock().await.unwrap().unlock().await });
            waiting(client, 1).await;
            guard.unlock().await.unwrap();
            tokio::time::timeout(PROMPT, waiter).await.expect("the waiter is woken").unwrap().unwrap();
            assert!(!probe.exists("static").await);
        });
    }
}

#[test]
fn runtimes_that_live_side_by_side_exclude_each_other_through_one_client() {
    let (outside, server) = outside();
    let probe = outside.block_on(server.probe());
    let client = outside.block_on(LockClient::connect(server.url())).unwrap();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let lock = client.get_lock("side-by-side").non_reentrant();
            let port = server.port();
            std::thread::spawn(move || {
                current_thread().block_on(async move {
                    let probe = Probe::connect(port).await;
                    for _ in 0..20 {
                        let guard = lock.lock().await.unwrap();
                        let n: u64 = probe.get("counter").await.map_or(0, |n| n.parse().unwrap());
                        probe.set("counter", &(n + 1).to_string()).await;
                        guard.unlock().await.unwrap();
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    outside.block_on(async {
        assert_eq!(probe.get("counter").await.as_deref(), Some("60"));
        assert!(!probe.exists("side-by-side").await);
    });
}

#[test]
fn a_guard_in_a_task_whose_runtime_is_dropped_is_released() {
    for runtime in [current_thread(), multi_thread()] {
        let (outside, server) = outside();
        let probe = outside.block_on(server.probe());
        let client = runtime.block_on(async {
            let client = LockClient::connect(server.url()).await.unwrap();
            let lock = client.get_lock("in-a-task");
            let (held, is_held) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let _guard = lock.lock().await.unwrap();
                held.send(()).unwrap();
                std::future::pending::<()>().await;
            });
            is_held.await.unwrap();
            client
        });
        outside.block_on(async { assert_eq!(probe.count("in-a-task").await, 1) });
        drop(runtime);
        outside.block_on(gone(&probe, "in-a-task", PROMPT));
        assert_eq!(client.stats().held, 0);
    }
}

#[test]
fn a_guard_is_renewed_after_its_runtime_has_ended_and_released_by_its_drop() {
    let (outside, server) = outside();
    let probe = outside.block_on(server.probe());
    let runtime = current_thread();
    let (client, guard) = runtime.block_on(async {
        let builder = LockClient::builder().url(server.url()).watchdog_timeout(Duration::from_millis(900));
        let client = builder.connect().await.unwrap();
        let guard = client.get_lock("orphan").lock().await.unwrap();
        (client, guard)
    });
    drop(runtime);
    // Three renewals last longer than the lease.
    let before = client.stats().renewals;
    outside.block_on(eventually(PROMPT, "renewals", || async { client.stats().renewals >= before + 4 }));
    assert!(!guard.is_lost());
    outside.block_on(async { assert_eq!(probe.count("orphan").await, 1) });
    drop(guard);
    outside.block_on(gone(&probe, "orphan", PROMPT));
}

#[test]
fn a_guard_dropped_under_a_runtime_that_is_never_driven_again_is_released() {
    let (outside, server) = outside();
    let probe = outside.block_on(server.probe());
    let runtime = current_thread();
    let (_client, guard) = runtime.block_on(async {
        let client = LockClient::connect(server.url()).await.unwrap();
        let guard = client.get_lock("not-driven").lock().await.unwrap();
        (client, guard)
    });
    drop(guard);
    outside.block_on(gone(&probe, "not-driven", PROMPT));
    drop(runtime);
}

#[tokio::test]
async fn a_guard_dropped_on_a_plain_thread_is_released() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let guard = client.get_lock("plain").lock().await.unwrap();
    assert_eq!(probe.count("plain").await, 1);
    std::thread::spawn(move || drop(guard)).join().unwrap();
    gone(&probe, "plain", PROMPT).await;
}

#[test]
fn everything_works_on_a_plain_thread_without_any_runtime() {
    let (outside, server) = outside();
    let probe = outside.block_on(server.probe());
    let client = block_on(LockClient::connect(server.url())).unwrap();
    let lock = client.get_lock("no-runtime");
    let guard = block_on(lock.lock()).unwrap();
    let nested = block_on(lock.lock()).unwrap();
    outside.block_on(async { assert_eq!(probe.count("no-runtime").await, 2) });
    assert_eq!(block_on(lock.hold_count()).unwrap(), 2);
    block_on(nested.unlock()).unwrap();

    // Another thread is another owner, and its wait ends by the release, or in time.
    let other = lock.clone();
    let in_vain =
        std::thread::spawn(move || block_on(other.try_lock_for(Duration::from_millis(200))).unwrap().is_none());
    assert!(in_vain.join().unwrap());
    let other = lock.clone();
    let waiter = std::thread::spawn(move || block_on(async { other.lock().await.unwrap().unlock().await }));
    outside.block_on(waiting(&client, 1));
    block_on(guard.unlock()).unwrap();
    waiter.join().unwrap().unwrap();
    block_on(client.shutdown(PROMPT)).unwrap();
    outside.block_on(async { assert!(!probe.exists("no-runtime").await) });
}

#[test]
fn a_client_that_has_a_runtime_works_on_a_plain_thread_without_one() {
    let (outside, server) = outside();
    let client = outside.block_on(LockClient::connect(server.url())).unwrap();
    let lock = client.get_lock("elsewhere");
    let worker = std::thread::spawn(move || {
        block_on(async {
            let guard = lock.lock().await.unwrap();
            assert!(lock.is_held().await.unwrap());
            guard.unlock().await.unwrap();
            assert!(!lock.is_locked().await.unwrap());
        });
    });
    worker.join().unwrap();
}

// Processes.

#[test]
#[ignore = "the child of main_returning_with_a_live_guard_frees_the_key"]
fn child_main_returns() {
    static CLIENT: OnceLock<LockClient> = OnceLock::new();
    let Some(role) = child::role() else { return };
    let [flavor, place, port] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let runtime = if flavor == "current_thread" { current_thread() } else { multi_thread() };
    let url = format!("redis://127.0.0.1:{port}");
    runtime.block_on(async {
        let client = LockClient::connect(&url).await.unwrap();
        let lock = client.get_lock("main");
        match place {
            // All of it goes at the end of this block.
            "local" => {
                let _guard = lock.lock().await.unwrap();
                println!("held");
            }
            // The guard is in a task: it goes with the runtime. The client stays: nobody drops a static.
            "static" => {
                CLIENT.set(client.clone()).unwrap();
                let (held, is_held) = tokio::sync::oneshot::channel();
                tokio::spawn(async move {
                    let _guard = lock.lock().await.unwrap();
                    held.send(()).unwrap();
                    std::future::pending::<()>().await;
                });
                is_held.await.unwrap();
                println!("held");
            }
            // The body's own guard, of a client that outlives it.
            "static-local-guard" => {
                CLIENT.set(client).unwrap();
                let _guard = lock.lock().await.unwrap();
                println!("held");
            }
            other => panic!("{other}"),
        }
    });
    drop(runtime);
}

#[test]
fn main_returning_with_a_live_guard_frees_the_key() {
    let (outside, server) = outside();
    let probe = outside.block_on(server.probe());
    for flavor in ["current_thread", "multi_thread"] {
        for place in ["local", "static", "static-local-guard"] {
            let role = format!("{flavor} {place} {}", server.port());
            let mut process = child::spawn("child_main_returns", &role);
            process.line_with("held", Duration::from_secs(20));
            assert!(process.wait(Duration::from_secs(20)), "{role}");
            outside.block_on(async { assert!(!probe.exists("main").await, "left behind: {role}") });
        }
    }
}

// Tasks.

#[tokio::test]
async fn a_dispatcher_that_moves_its_guards_into_tasks_re_enters_without_detach() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock("dispatch");
    let work = Arc::new(tokio::sync::Notify::new());
    let mut tasks = Vec::new();
    for turn in 1..=3 {
        let guard = tokio::time::timeout(PROMPT, lock.lock()).await.expect("it re-enters").unwrap();
        let work = work.clone();
        tasks.push(tokio::spawn(async move {
            work.notified().await;
            guard.unlock().await
        }));
        assert_eq!(probe.count("dispatch").await, turn);
    }
    tokio::task::yield_now().await;
    for (task, left) in tasks.into_iter().zip([2, 1, 0]) {
        work.notify_one();
        task.await.unwrap().unwrap();
        assert_eq!(probe.count("dispatch").await, left);
    }
}

#[tokio::test]
async fn a_dispatcher_that_detaches_its_guards_waits_for_each_task() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock("dispatch");
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let before = Owner::current();
        let guard = tokio::time::timeout(PROMPT, lock.lock()).await.expect("its turn comes").unwrap();
        assert_eq!(guard.owner(), before);
        let guard = guard.detach().unwrap();
        assert_ne!(guard.owner(), before);
        assert!(!lock.is_held().await.unwrap() && lock.is_held_by(guard.owner()).await.unwrap());
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two at work");
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst), 1);
            guard.unlock().await
        }));
        // Never two: `count` refuses that; none when the task was quick.
        assert!(probe.count("dispatch").await <= 1);
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert!(!probe.exists("dispatch").await);
}

#[tokio::test]
async fn a_nested_hold_is_not_detached_and_its_guard_comes_back() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock("nested");
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    let inner = inner.detach().unwrap_err().into_guard();
    assert_eq!(inner.owner(), Owner::current());
    inner.unlock().await.unwrap();
    assert_eq!(probe.count("nested").await, 1);
    outer.detach().unwrap().unlock().await.unwrap();
    assert!(!probe.exists("nested").await);
}

#[tokio::test]
async fn two_locks_joined_in_one_task_both_get_it() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock("joined");
    let both = async { tokio::join!(lock.lock(), lock.lock()) };
    let (a, b) = tokio::time::timeout(PROMPT, both).await.expect("they share the task");
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.owner(), b.owner());
    assert_eq!(probe.count("joined").await, 2);
    let (a, b) = tokio::join!(a.unlock(), b.unlock());
    a.and(b).unwrap();
    assert!(!probe.exists("joined").await);
}

/// Joins two critical sections in one task; the most that were inside at once.
async fn joined_in_one_task(one: impl Future<Output = LockGuard>, two: impl Future<Output = LockGuard>) -> i32 {
    let inside = std::cell::Cell::new((0, 0));
    let section = async |taken: std::pin::Pin<&mut dyn Future<Output = LockGuard>>| {
        let guard = taken.await;
        let now = inside.get().0 + 1;
        inside.set((now, inside.get().1.max(now)));
        tokio::time::sleep(Duration::from_millis(20)).await;
        inside.set((inside.get().0 - 1, inside.get().1));
        guard.unlock().await.unwrap();
    };
    let (one, two) = (pin!(one), pin!(two));
    let both = async { tokio::join!(section(one), section(two)) };
    tokio::time::timeout(PROMPT, both).await.expect("each gets its turn");
    inside.get().1
}

#[tokio::test]
async fn two_locks_joined_in_one_task_exclude_each_other_with_scopes_or_non_reentrant() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock("joined");
    let shared = joined_in_one_task(async { lock.lock().await.unwrap() }, async { lock.lock().await.unwrap() });
    assert_eq!(shared.await, 2, "without them, the task is shared");
    let (a, b) = (Owner::new(), Owner::new());
    let scoped = joined_in_one_task(
        a.scope(async { lock.lock().await.unwrap() }),
        b.scope(async { lock.lock().await.unwrap() }),
    );
    assert_eq!(scoped.await, 1);
    let stranger = lock.non_reentrant();
    let strangers =
        joined_in_one_task(async { stranger.lock().await.unwrap() }, async { stranger.lock().await.unwrap() });
    assert_eq!(strangers.await, 1);
    assert!(!probe.exists("joined").await);
    let _guard = stranger.lock().await.unwrap();
    assert!(stranger.try_lock().await.unwrap().is_none());
}

#[tokio::test]
async fn a_grant_that_nobody_polls_for_is_given_back_and_got_again_when_somebody_does() {
    let server = TestServer::own().await;
    let builder = LockClient::builder().url(server.url()).undelivered_grant(Duration::from_millis(200));
    let client = builder.connect().await.unwrap();
    let probe = server.probe().await;
    let lock = client.get_lock("unpolled").non_reentrant();
    let mut lazy = Box::pin(lock.lock());
    assert!(lazy.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    eventually(PROMPT, "it is granted", || async { client.stats().acquired == 1 }).await;
    gone(&probe, "unpolled", PROMPT).await;
    // Meanwhile others go on.
    let guard = tokio::time::timeout(PROMPT, lock.lock()).await.expect("it is free").unwrap();
    guard.unlock().await.unwrap();
    let guard = tokio::time::timeout(PROMPT, lazy).await.expect("it asks again").unwrap();
    assert!(!guard.is_lost());
    assert_eq!(probe.count("unpolled").await, 1);
    guard.unlock().await.unwrap();
    assert!(!probe.exists("unpolled").await);
}

// The end of a client.

async fn is_closed(lock: &RLock) {
    assert!(matches!(lock.lock().await, Err(Error::Closed { .. })));
    assert!(matches!(lock.try_lock().await, Err(Error::Closed { .. })));
    assert!(matches!(lock.try_lock_for(Duration::from_secs(1)).await, Err(Error::Closed { .. })));
    assert!(matches!(lock.force_unlock().await, Err(Error::Closed { .. })));
    assert!(matches!(lock.is_locked().await, Err(Error::Closed { .. })));
}

#[tokio::test]
async fn shutdown_closes_waiters_releases_holds_and_says_the_same_twice() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let probe = server.probe().await;
    let guard = client.get_lock("one").lock().await.unwrap();
    client.get_lock("two").with_lease(Duration::from_secs(30)).lock().await.unwrap().forget();
    let foreign = stranger.get_lock("foreign").lock().await.unwrap();
    let told = guard.lost();
    let waiters = ["one", "foreign"].map(|name| {
        let lock = client.get_lock(name);
        tokio::spawn(async move { lock.lock().await.map(drop) })
    });
    waiting(&client, 2).await;

    client.shutdown(PROMPT).await.unwrap();
    for waiter in waiters {
        let ended = tokio::time::timeout(PROMPT, waiter).await.expect("the waiter is told").unwrap();
        assert!(matches!(ended, Err(Error::Closed { .. })), "{ended:?}");
    }
    assert!(!probe.exists("one").await && !probe.exists("two").await);
    assert_eq!(probe.count("foreign").await, 1);
    assert!(guard.is_lost());
    assert_eq!(told.await, HoldEnd::Lost(LostReason::Closed));
    is_closed(&client.get_lock("three")).await;
    client.shutdown(Duration::ZERO).await.unwrap();
    client.shutdown_keeping_holds(Duration::ZERO).await.unwrap();
    assert!(matches!(guard.unlock().await, Err(Error::Lost(lost)) if lost.reason == LostReason::Closed));
    foreign.unlock().await.unwrap();
    drop(stranger);
    eventually(PROMPT, "the connections are closed", || async {
        probe.clients("pubsub").await.is_empty() && probe.clients("normal").await.len() == 1
    })
    .await;
}

#[tokio::test]
async fn shutdown_keeping_holds_leaves_them_to_run_out() {
    let server = TestServer::own().await;
    let builder = LockClient::builder().url(server.url()).watchdog_timeout(Duration::from_millis(900));
    let client = builder.connect().await.unwrap();
    let probe = server.probe().await;
    let guard = client.get_lock("kept").lock().await.unwrap();
    client.shutdown_keeping_holds(PROMPT).await.unwrap();
    assert_eq!(probe.count("kept").await, 1);
    assert!(guard.is_lost());
    is_closed(&client.get_lock("kept")).await;
    drop(guard);
    drop(client);
    // Not renewed, and not released before its time by the drops.
    assert_eq!(probe.count("kept").await, 1);
    gone(&probe, "kept", Duration::from_secs(3)).await;
}

#[tokio::test]
async fn shutdown_lists_what_was_not_confirmed_and_says_so_twice() {
    let mut server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let _one = client.get_lock("one").lock().await.unwrap();
    let _two = client.get_lock("two").lock().await.unwrap();
    server.freeze();
    let start = Instant::now();
    let mut listed = client.shutdown(Duration::from_millis(300)).await.unwrap_err().unconfirmed;
    assert!(start.elapsed() < PROMPT, "{:?}", start.elapsed());
    listed.sort();
    assert_eq!(listed.iter().map(|l| &**l).collect::<Vec<_>>(), ["one", "two"]);
    let mut again = client.shutdown(Duration::from_millis(300)).await.unwrap_err().unconfirmed;
    again.sort();
    assert_eq!(again, listed);
    server.thaw();
}

#[tokio::test]
async fn the_last_handle_dropped_releases_forgotten_holds() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.get_lock("forgotten");
    let owner = lock.lock().await.unwrap().forget();
    drop(client);
    // A lock is a handle too.
    assert!(lock.is_held_by(owner).await.unwrap());
    assert_eq!(probe.count("forgotten").await, 1);
    drop(lock);
    gone(&probe, "forgotten", PROMPT).await;
    eventually(PROMPT, "the connections are closed", || async {
        probe.clients("pubsub").await.is_empty() && probe.clients("normal").await.len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_forgotten_hold_is_released_by_its_owner_alone_and_once() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.get_lock("java-style");
    let guard = lock.lock().await.unwrap();
    assert!(matches!(lock.unlock().await, Err(Error::HeldByGuard { .. })));
    guard.forget();
    let elsewhere = lock.clone();
    let other = tokio::spawn(async move { elsewhere.unlock().await }).await.unwrap();
    assert!(matches!(other, Err(Error::NotHeld { why: NotHeld::Never, .. })), "{other:?}");
    assert_eq!(probe.count("java-style").await, 1);
    lock.unlock().await.unwrap();
    assert!(!probe.exists("java-style").await);
    assert!(matches!(lock.unlock().await, Err(Error::NotHeld { .. })));
}

#[tokio::test]
async fn the_last_handle_dropped_with_nothing_held_does_not_wait() {
    let mut server = TestServer::own().await;
    let builder = LockClient::builder().url(server.url()).drain_timeout(Duration::from_secs(20));
    let client = builder.connect().await.unwrap();
    client.get_lock("idle").lock().await.unwrap().unlock().await.unwrap();
    server.freeze();
    let start = Instant::now();
    drop(client);
    assert!(start.elapsed() < PROMPT, "{:?}", start.elapsed());
    server.thaw();
}

#[tokio::test]
async fn the_last_handle_dropped_waits_for_a_dead_server_no_longer_than_the_drain_timeout() {
    let mut server = TestServer::own().await;
    let builder = LockClient::builder().url(server.url()).drain_timeout(Duration::from_millis(300));
    let client = builder.connect().await.unwrap();
    client.get_lock("stuck").lock().await.unwrap().forget();
    server.freeze();
    let start = Instant::now();
    drop(client);
    assert!(start.elapsed() < PROMPT, "{:?}", start.elapsed());
    server.thaw();
    server.kill9();
}

#[tokio::test]
async fn a_waiter_outlives_the_clone_of_the_client_that_it_came_from() {
    let server = TestServer::own().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let stranger = LockClient::connect(server.url()).await.unwrap();
    let foreign = stranger.get_lock("handle").lock().await.unwrap();
    let lock = client.get_lock("handle");
    let mut waiter = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    waiting(&client, 1).await;
    drop(client);
    still_waits(&mut waiter).await;
    foreign.unlock().await.unwrap();
    tokio::time::timeout(PROMPT, waiter).await.expect("it is woken").unwrap().unwrap();
}
