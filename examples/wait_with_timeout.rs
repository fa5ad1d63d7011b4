//! Waiting for a lock, but not for ever.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example wait_with_timeout
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use redisson_lock::LockClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    // Two clients are two participants, as two processes would be.
    let (first, second) = (LockClient::connect(&url).await?, LockClient::connect(&url).await?);
    let (first, second) = (first.get_lock("example:wait"), second.get_lock("example:wait"));

    let held = first.lock().await?;
    println!("first holds it");

    // One attempt, no waiting.
    assert!(second.try_lock().await?.is_none());
    println!("second: try_lock says no, at once");

    // Java: tryLock(1, SECONDS). `None` is not an error: somebody else has it.
    let start = Instant::now();
    match second.try_lock_for(Duration::from_secs(1)).await? {
        Some(guard) => {
            guard.unlock().await?;
            return Err("second got a lock that first holds".into());
        }
        None => println!("second: gave up after {:.2?}", start.elapsed()),
    }

    // Java: tryLock(10, 2, SECONDS): waits at most 10 s, holds for at most 2 s, and nobody renews it. `first` releases in the
    // meantime, and its message wakes `second` long before the ten seconds are over.
    let releasing = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        held.unlock().await
    });
    let start = Instant::now();
    let leased = second.with_lease(Duration::from_secs(2));
    let Some(guard) = leased.try_lock_for(Duration::from_secs(10)).await? else {
        return Err("second did not get a lock that was released".into());
    };
    println!("second: got it after {:.2?}, certain for another {:.2?}", start.elapsed(), guard.remaining());
    releasing.await??;
    guard.unlock().await?;
    Ok(())
}
