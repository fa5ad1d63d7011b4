//! What happens to work whose lock is lost: `guard.run` stops it.
//!
//! A lock on a server can go without its holder's doing: an operator removes it, the data is flushed, the server is
//! restarted, the holder's machine was asleep for longer than the lease. The guard is told, and `run` drops the work at its
//! next `.await`.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example lost_lock
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use redisson_lock::{HoldEnd, LockClient};

const WATCHDOG: Duration = Duration::from_millis(1_500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    // Renewed every 500 ms; that is also how soon a loss is noticed. The default is 30 s, renewed every 10 s.
    let worker = LockClient::builder().url(&url).watchdog_timeout(WATCHDOG).label("worker").connect().await?;
    let operator = LockClient::builder().url(&url).label("operator").connect().await?;

    let guard = worker.get_lock("example:lost").lock().await?;

    // For whoever wants to know and does not hold the guard: a future of its own, to be cloned and sent anywhere. It ends
    // with `Released` after a normal unlock, so that nobody waits for ever.
    let listener = tokio::spawn(guard.lost());

    let forced = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        println!("operator: removes the lock");
        let at = Instant::now();
        operator.get_lock("example:lost").force_unlock().await.map(|was_locked| (was_locked, at))
    });

    let outcome = guard.run(long_job()).await;
    let noticed = Instant::now();
    let lost = match outcome {
        Ok(()) => return Err("the job ended under a lock that was removed".into()),
        Err(lost) => lost,
    };
    let (was_locked, at) = forced.await??;
    assert!(was_locked);
    println!("worker:   {lost}; told after {:.2?}", noticed - at);
    assert!(noticed - at < WATCHDOG / 3 + Duration::from_millis(500));
    assert!(guard.is_lost() && guard.remaining().is_zero());
    assert_eq!(listener.await?, HoldEnd::Lost(lost.reason));

    // Unlocking a lost hold is an error and touches nobody: the lock may be in other hands by now.
    let error = guard.unlock().await.expect_err("it is lost");
    println!("worker:   unlock says: {error}");
    Ok(())
}

async fn long_job() {
    for step in 1.. {
        println!("worker:   step {step}");
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}
