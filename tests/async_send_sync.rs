//! What may go to another task or thread, checked when this compiles.
#![allow(missing_docs)]

mod common;

use std::future::Future;
use std::time::Duration;

use redisson_lock::{
    ConnectError, ConnectErrorKind, Error, HoldEnd, InvalidDuration, InvalidName, LockClient, LockClientBuilder,
    LockGuard, LockHolder, LockInfo, LockLost, Lost, LostReason, NestedHold, NotHeld, Owner, RLock, Refused,
    ShutdownError, Stats,
};

const fn anywhere<T: Send + Sync + Unpin + 'static>() {}
const fn cloned<T: Clone>() {}
const fn copied<T: Copy + Eq + std::hash::Hash>() {}
const fn an_error<T: std::error::Error + Send + Sync + 'static>() {}
const fn listener<T: Future<Output = HoldEnd> + Clone + Send + 'static>() {}

/// Fails to compile where the type has the trait: then two implementations fit.
macro_rules! not {
    ($type:ty: $trait:path) => {
        const _: fn() = || {
            trait Ambiguous<A> {
                fn some_item() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct HasIt;
            impl<T: ?Sized + $trait> Ambiguous<HasIt> for T {}
            let _ = <$type as Ambiguous<_>>::some_item;
        };
    };
}

// A guard is one hold, and a builder is nothing before it connects.
not!(LockGuard: Clone);
not!(LockGuard: Default);
not!(NestedHold: Clone);
not!(Owner: Default);
not!(LockClientBuilder: Future);

const _: () = {
    anywhere::<LockClient>();
    anywhere::<LockClientBuilder>();
    anywhere::<RLock>();
    anywhere::<LockGuard>();
    anywhere::<Lost>();
    anywhere::<Owner>();
    anywhere::<Stats>();
    anywhere::<LockInfo>();
    anywhere::<LockHolder>();
    anywhere::<HoldEnd>();

    cloned::<LockClient>();
    cloned::<LockClientBuilder>();
    cloned::<RLock>();
    cloned::<Error>();
    cloned::<ConnectError>();
    cloned::<ShutdownError>();

    copied::<Owner>();
    copied::<HoldEnd>();
    copied::<LostReason>();
    copied::<Refused>();
    copied::<InvalidName>();
    copied::<InvalidDuration>();
    copied::<ConnectErrorKind>();

    an_error::<Error>();
    an_error::<LockLost>();
    an_error::<NestedHold>();
    an_error::<ConnectError>();
    an_error::<ShutdownError>();
    anywhere::<NotHeld>();

    listener::<Lost>();
};

fn sent<F: Future + Send>(future: F) -> F {
    future
}

fn spawned<F: Future + Send + 'static>(future: F) -> F {
    future
}

/// Never called: that it compiles is the test.
#[allow(dead_code)]
async fn every_future_may_be_spawned(client: LockClient, lock: RLock, guard: LockGuard, owner: Owner) {
    const SECOND: Duration = Duration::from_secs(1);
    drop(spawned(LockClient::connect(String::new())));
    drop(spawned(LockClient::builder().connect()));
    drop(sent(client.shutdown(SECOND)));
    drop(sent(client.shutdown_keeping_holds(SECOND)));

    drop(sent(lock.lock()));
    drop(sent(lock.try_lock()));
    drop(sent(lock.try_lock_for(SECOND)));
    drop(sent(lock.unlock()));
    drop(sent(lock.force_unlock()));
    drop(sent(lock.is_locked()));
    drop(sent(lock.is_held()));
    drop(sent(lock.is_held_by(owner)));
    drop(sent(lock.hold_count()));
    drop(sent(lock.remaining_lease()));
    drop(sent(lock.inspect()));

    drop(sent(guard.extend(SECOND)));
    drop(sent(guard.run(std::future::ready(()))));
    drop(spawned(guard.lost()));
    drop(spawned(owner.scope(std::future::ready(()))));
    drop(spawned(guard.unlock()));

    let held_over_an_await = async move {
        let guard = lock.with_lease(SECOND).non_reentrant().lock().await?;
        guard.run(tokio::time::sleep(SECOND)).await?;
        owner.scope(async { lock.with_max_hold(SECOND).lock().await?.unlock().await }).await?;
        guard.unlock().await
    };
    drop(spawned(held_over_an_await));
}

/// Holds a guard, but may not leave its thread: what `run` wraps need not be Send.
#[allow(dead_code)]
async fn what_a_guard_runs_need_not_be_send(guard: &LockGuard) -> Result<u8, LockLost> {
    let local = std::rc::Rc::new(7);
    guard.run(async move { *local }).await
}

#[tokio::test]
async fn a_guard_is_looked_at_by_one_thread_while_another_holds_it_and_released_by_a_third() {
    let server = common::TestServer::start().await;
    let client = LockClient::connect(server.url()).await.unwrap();
    let lock = client.get_lock(common::unique_key("send"));
    let guard = std::sync::Arc::new(lock.lock().await.unwrap());
    let seen = guard.clone();
    let looked = std::thread::spawn(move || (seen.is_lost(), seen.remaining())).join().unwrap();
    assert!(!looked.0 && looked.1 > Duration::ZERO, "{looked:?}");
    let probe = server.probe().await;
    assert_eq!(probe.count(lock.name()).await, 1);
    std::thread::spawn(move || drop(guard)).join().unwrap();
    common::eventually(Duration::from_secs(5), "the key is gone", || async { !probe.exists(lock.name()).await }).await;
}
