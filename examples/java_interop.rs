//! One lock, two languages: the Rust half, to be tried beside a Java service that uses Redisson.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example java_interop -- order:42 10
//! ```
//!
//! takes the lock `order:42`, waiting for as long as somebody else has it, nests once, keeps it for 10 seconds and lets go,
//! and prints at each step what Redis holds. In Java, on the same server:
//!
//! ```java
//! RLock lock = redisson.getLock("order:42");
//! lock.lock();                                 // waits until the Rust process lets go, and is woken by it
//! try { Thread.sleep(10_000); } finally { lock.unlock(); }
//! ```
//!
//! Without a Java service at hand, `tests/java/peer redis://127.0.0.1:6379` starts a small one (a JDK and Maven are needed);
//! type `t1 lock order:42`, `t1 unlock order:42`.

use std::error::Error;
use std::time::{Duration, Instant};

use redisson_lock::{LockClient, RLock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "order:42".into());
    let seconds: f64 = arguments.next().map_or(Ok(5.0), |s| s.parse())?;

    let client = LockClient::builder().url(&url).label("rust-half").connect().await?;
    let lock = client.get_lock(&name);
    println!("this process is {}", client.id());

    show("before", &lock).await?;
    let start = Instant::now();
    let guard = match lock.try_lock().await? {
        Some(guard) => guard,
        None => {
            println!("held by somebody else: waiting");
            lock.lock().await?
        }
    };
    println!("got it after {:.2?}", start.elapsed());
    show("locked", &lock).await?;

    let nested = lock.lock().await?;
    show("nested", &lock).await?;
    nested.unlock().await?;

    // Stops at once if Java forces the lock, or if it is lost in another way.
    match guard.run(tokio::time::sleep(Duration::from_secs_f64(seconds))).await {
        Ok(()) => {
            show("before the release", &lock).await?;
            guard.unlock().await?;
            println!("released");
        }
        Err(lost) => println!("{lost}"),
    }
    show("after", &lock).await
}

async fn show(when: &str, lock: &RLock) -> Result<(), Box<dyn Error>> {
    let info = lock.inspect().await?;
    println!("{when}: key {}", lock.name());
    for holder in &info.holders {
        let whose = if holder.ours { "ours" } else { "somebody else's" };
        println!("    {} = {}   ({whose})", holder.field, holder.count);
    }
    match info.remaining_lease {
        Some(left) => println!("    runs out in {left:.1?} unless it is renewed"),
        None => println!("    not there: free"),
    }
    if let Some(waiting) = info.subscribers {
        println!("    {waiting} connection(s) wait for word on its channel");
    }
    Ok(())
}
