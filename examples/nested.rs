//! Nested calls: an owner that holds a lock takes it again at once, and the lock is free when the last guard has gone.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example nested
//! ```

use std::error::Error;

use redisson_lock::{LockClient, Owner, RLock};

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    let client = LockClient::connect(&url).await?;

    // The functions below take the lock without knowing who else has. Nothing is passed along: the owner is whoever runs
    // them, here the thread of `main`, elsewhere the task.
    place_order(&client).await?;

    let lock = client.get_lock("example:nested");
    assert!(!lock.is_locked().await?, "every guard is gone, and so is the lock");
    println!("outside:      free");

    // Another owner does not nest. With `Owner::scope` one task can be two owners.
    let guard = lock.lock().await?;
    let stranger = Owner::new().scope(lock.try_lock()).await?;
    assert!(stranger.is_none());
    println!("a stranger:   has to wait, even in the same task");
    guard.unlock().await?;
    Ok(())
}

async fn place_order(client: &LockClient) -> Outcome<()> {
    let lock = client.get_lock("example:nested");
    let guard = lock.lock().await?;
    show("place_order", &lock, 1).await?;
    take_from_stock(client).await?;
    show("place_order", &lock, 1).await?;
    guard.unlock().await?;
    Ok(())
}

async fn take_from_stock(client: &LockClient) -> Outcome<()> {
    let lock = client.get_lock("example:nested");
    // Does not wait: the owner holds it already. The server counts the holds.
    let _guard = lock.lock().await?;
    show("  take_stock", &lock, 2).await?;
    write_journal(client).await
    // `_guard` goes here; its release is sent in the background, before anything that this owner asks next.
}

async fn write_journal(client: &LockClient) -> Outcome<()> {
    let lock = client.get_lock("example:nested");
    let guard = lock.try_lock().await?.expect("an owner never loses against itself");
    show("    journal", &lock, 3).await?;
    guard.unlock().await?;
    Ok(())
}

async fn show(place: &str, lock: &RLock, expected: u64) -> Outcome<()> {
    let count = lock.hold_count().await?;
    println!("{place:<13} hold count {count}");
    assert_eq!(count, expected);
    Ok(())
}
