//! The demonstration behind `scripts/demo`: what this crate does, with times, and who waits for whom. Every scene checks what it
//! shows; the process ends with an error if something does not happen.
//!
//! It needs a server that holds nothing, because one scene flushes it:
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6390 cargo run --example demo
//! ```
//!
//! If `REDISSON_LOCK_DEMO_JAVA` is set (to `tests/java/peer`, say), it is a command line that starts a Redisson process, to which
//! the server's URL and the watchdog timeout in milliseconds are added; it takes its turn in the last scene. What is said to
//! it is in `tests/java/README.md`.

use std::error::Error;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redisson_lock::{Error as LockError, LockClient, LostReason, RLock};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The lease of a hold that is renewed. Short, so that things can be seen; 30 s unless it is set.
const WATCHDOG: Duration = Duration::from_secs(2);
/// What a woken waiter, or a scheduler on a busy machine, may take beyond the time that is expected.
const SLACK: Duration = Duration::from_millis(800);

static START: OnceLock<Instant> = OnceLock::new();

/// One line: when, who, what.
macro_rules! say {
    ($who:expr, $($what:tt)*) => {{
        let at = START.get_or_init(Instant::now).elapsed();
        println!("{:>8.3} s  {:<6} {}", at.as_secs_f64(), $who, format_args!($($what)*));
    }};
}

/// What the demonstration claims; an error if it is not so.
macro_rules! expect {
    ($claim:expr, $($otherwise:tt)*) => {
        if !$claim {
            return Err(format!($($otherwise)*).into());
        }
    };
}

#[tokio::main]
async fn main() -> ExitCode {
    match timeout(Duration::from_secs(120), demo()).await {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("\nthe demonstration failed: {error}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("\nthe demonstration failed: it hangs");
            ExitCode::FAILURE
        }
    }
}

async fn demo() -> Outcome<()> {
    let url = std::env::var("REDIS_URL").map_err(|_| {
        "REDIS_URL is not set. `scripts/demo` starts a throw-away server and sets it; this demonstration flushes its server"
    })?;
    let server = Server::new(&url)?;
    expect!(
        !server.command(&["INFO", "keyspace"]).await?.contains("keys="),
        "the server at {} holds data, and this demonstration would flush it: give it an empty one",
        server.address
    );
    // First, and not beside the scenes: a JVM that starts takes what processor there is.
    let java = match std::env::var("REDISSON_LOCK_DEMO_JAVA").ok().filter(|c| !c.trim().is_empty()) {
        Some(line) => Some(Java::start(&line, &url).await?),
        None => None,
    };
    START.get_or_init(Instant::now);

    let mut pods = Vec::new();
    for n in 1..=3 {
        let name = format!("pod-{n}");
        let client = LockClient::builder().url(&url).watchdog_timeout(WATCHDOG).label(&name).connect().await?;
        pods.push(Pod { name, client });
    }
    println!("Three pods, each with a client of its own, on the Redis at {}.", server.address);
    println!("A hold that is not released lasts {WATCHDOG:?}, and is renewed every {:.0?}.", WATCHDOG / 3);

    daily_report(&pods).await?;
    nested_calls(&pods).await?;
    waiting_with_a_timeout(&pods).await?;
    a_job_longer_than_its_lease(&pods).await?;
    a_lock_that_is_lost(&pods, &server).await?;
    match java {
        Some(java) => java_takes_its_turn(&pods[0], java).await?,
        None => println!("\n(No Java process takes part: REDISSON_LOCK_DEMO_JAVA is not set.)"),
    }

    for pod in &pods {
        pod.client.shutdown(Duration::from_secs(2)).await?;
    }
    expect!(!server.command(&["INFO", "keyspace"]).await?.contains("keys="), "something was left behind");
    println!("\nEverything shown was checked, and the server is as empty as before.");
    Ok(())
}

struct Pod {
    name: String,
    client: LockClient,
}

impl Pod {
    fn lock(&self, name: &str) -> RLock {
        self.client.get_lock(name)
    }
}

fn title(number: u32, title: &str) {
    println!("\n{number}. {title}");
}

async fn daily_report(pods: &[Pod]) -> Outcome<()> {
    title(1, "Three pods race for the daily report: one runs it, two skip it");
    let start = Arc::new(Barrier::new(pods.len()));
    let mut racers = Vec::new();
    for pod in pods {
        let (name, lock, start) = (pod.name.clone(), pod.lock("demo:daily-report"), start.clone());
        racers.push(tokio::spawn(async move {
            start.wait().await;
            // The lock says who is at it, not that it was done today: the report itself has to say that. Here the race is
            // over before the report is.
            match lock.try_lock().await? {
                Some(guard) => {
                    say!(name, "has the lock: runs the report");
                    sleep(Duration::from_millis(600)).await;
                    guard.unlock().await?;
                    say!(name, "report done, lock released");
                    Ok::<_, LockError>(true)
                }
                None => {
                    say!(name, "somebody else is at it: skips");
                    Ok(false)
                }
            }
        }));
    }
    let mut ran = 0;
    for racer in racers {
        ran += usize::from(racer.await??);
    }
    expect!(ran == 1, "{ran} pods ran the report");
    Ok(())
}

async fn nested_calls(pods: &[Pod]) -> Outcome<()> {
    title(2, "Nested calls: the owner of a lock takes it again without waiting; others wait for the last release");
    let (who, lock, other) = (&pods[0].name, pods[0].lock("demo:nested"), pods[1].lock("demo:nested"));
    let mut guards = Vec::new();
    for depth in 1..=3 {
        guards.push(lock.lock().await?);
        let count = lock.hold_count().await?;
        say!(who, "takes it: {count} hold(s) in Redis");
        expect!(count == depth, "{count} holds after {depth} acquires");
    }
    while let Some(guard) = guards.pop() {
        expect!(other.try_lock().await?.is_none(), "{} got in beside its holder", pods[1].name);
        guard.unlock().await?;
        let count = lock.hold_count().await?;
        say!(who, "releases one: {count} hold(s) in Redis");
        expect!(count == guards.len() as u64, "{count} holds with {} guards", guards.len());
    }
    let guard = other.try_lock().await?.ok_or("the lock is not free after its last release")?;
    say!(pods[1].name, "was refused three times, and has it now");
    guard.unlock().await?;
    Ok(())
}

async fn waiting_with_a_timeout(pods: &[Pod]) -> Outcome<()> {
    title(3, "Waiting with a timeout");
    let (holder, waiter) = (&pods[0], &pods[1]);
    let (lock, waiting) = (holder.lock("demo:wait"), waiter.lock("demo:wait"));
    let guard = lock.lock().await?;
    say!(holder.name, "has the lock");

    let patience = Duration::from_secs(1);
    let start = Instant::now();
    say!(waiter.name, "waits for {}, at most {patience:?}", holder.name);
    expect!(waiting.try_lock_for(patience).await?.is_none(), "{} got in beside its holder", waiter.name);
    let waited = start.elapsed();
    say!(waiter.name, "gives up after {waited:.2?}");
    expect!(waited >= patience && waited < patience + SLACK, "a wait of {patience:?} took {waited:?}");

    let releasing = tokio::spawn({
        let name = holder.name.clone();
        async move {
            sleep(Duration::from_millis(700)).await;
            let at = Instant::now();
            guard.unlock().await?;
            say!(name, "has released it");
            Ok::<_, LockError>(at)
        }
    });
    say!(waiter.name, "waits for {}, at most 10 s", holder.name);
    let guard = waiting.try_lock_for(Duration::from_secs(10)).await?.ok_or("not granted after a release")?;
    let granted = Instant::now();
    let after = granted.saturating_duration_since(releasing.await??);
    say!(waiter.name, "has it, {after:.1?} after the release began");
    expect!(after < SLACK, "woken {after:?} after the release");
    guard.unlock().await?;
    Ok(())
}

async fn a_job_longer_than_its_lease(pods: &[Pod]) -> Outcome<()> {
    title(4, "A job three times as long as its lease: the watchdog keeps the lock, the waiter gets it right after");
    let (holder, waiter) = (&pods[1], &pods[2]);
    let (lock, waiting) = (holder.lock("demo:job"), waiter.lock("demo:job"));
    let renewals = holder.client.stats().renewals;
    let guard = lock.lock().await?;
    say!(holder.name, "starts a job of {:?} under a lease of {WATCHDOG:?}", WATCHDOG * 3);
    let next = tokio::spawn({
        let name = waiter.name.clone();
        let ahead = holder.name.clone();
        async move {
            say!(name, "waits for {ahead}");
            let guard = waiting.lock().await?;
            let at = Instant::now();
            say!(name, "has it");
            guard.unlock().await?;
            Ok::<_, LockError>(at)
        }
    });
    for _ in 0..4 {
        sleep(WATCHDOG * 3 / 4).await;
        let left = lock.remaining_lease().await?.ok_or("the key ran out under a running job")?;
        say!(holder.name, "at work; Redis would keep the lock for another {} ms", left.as_millis());
    }
    expect!(!next.is_finished(), "{} got in beside its holder", waiter.name);
    expect!(!guard.is_lost(), "{} lost the lock", holder.name);
    let renewals = holder.client.stats().renewals - renewals;
    expect!(renewals >= 3, "a job of three leases saw {renewals} renewals");
    say!(holder.name, "done, after {renewals} renewals: unlocks");
    let released = Instant::now();
    guard.unlock().await?;
    let after = next.await??.saturating_duration_since(released);
    expect!(after < SLACK, "{} got the lock only {after:?} after the release", waiter.name);
    Ok(())
}

async fn a_lock_that_is_lost(pods: &[Pod], server: &Server) -> Outcome<()> {
    title(5, "The server loses its data: the guard says so within a renewal period, and the work under it is stopped");
    let (holder, other) = (&pods[0], &pods[2]);
    let guard = holder.lock("demo:lost").lock().await?;
    say!(holder.name, "has the lock and works under it");
    let flushing = async {
        sleep(Duration::from_millis(800)).await;
        let at = Instant::now();
        server.command(&["FLUSHALL"]).await?;
        say!("redis", "FLUSHALL: every lock is gone");
        Outcome::Ok(at)
    };
    let work = guard.run(sleep(Duration::from_secs(10)));
    let (flushed, outcome) = tokio::join!(flushing, async { (work.await, Instant::now()) });
    let (outcome, told) = outcome;
    let after = told.saturating_duration_since(flushed?);
    let Err(lost) = outcome else { return Err("the work went on without the lock".into()) };
    say!(holder.name, "is told after {} ms: {}", after.as_millis(), lost.reason);
    expect!(lost.reason == LostReason::Gone, "lost for another reason: {}", lost.reason);
    expect!(after < WATCHDOG / 3 + SLACK, "told only after {after:?}");

    let next = other.lock("demo:lost").try_lock().await?.ok_or("a flushed lock is not free")?;
    say!(other.name, "has the lock now");
    let error = guard.unlock().await.err().ok_or("unlocking a lost lock went well")?;
    say!(holder.name, "unlock: {error}");
    expect!(!next.is_lost() && other.lock("demo:lost").is_locked().await?, "a late unlock touched the next holder");
    next.unlock().await?;
    Ok(())
}

async fn java_takes_its_turn(pod: &Pod, mut java: Java) -> Outcome<()> {
    title(6, &format!("A Java process with Redisson {} takes its turn", java.redisson));
    const KEY: &str = "demo:both";
    let lock = pod.lock(KEY);

    let held = java.send("t1 lock demo:both").await?;
    java.answer(held).await?;
    say!("java", "has the lock, and renews it");
    let holders = lock.inspect().await?.holders;
    expect!(holders.len() == 1 && !holders[0].ours, "Redis holds {holders:?}");
    say!(pod.name, "reads in Redis: held by {}, {} time(s)", holders[0].field, holders[0].count);
    expect!(lock.try_lock().await?.is_none(), "{} got in beside Java", pod.name);

    let waiting = tokio::spawn({
        let (name, lock) = (pod.name.clone(), lock.clone());
        async move {
            say!(name, "waits for java");
            let guard = lock.lock().await?;
            say!(name, "has it");
            Ok::<_, LockError>((guard, Instant::now()))
        }
    });
    sleep(Duration::from_millis(1_200)).await;
    expect!(!waiting.is_finished(), "{} got in beside Java", pod.name);
    let released = Instant::now();
    say!("java", "unlocks");
    let unlocked = java.send("t1 unlock demo:both").await?;
    java.answer(unlocked).await?;
    let (guard, granted) =
        timeout(Duration::from_secs(5), waiting).await.map_err(|_| "a release by Java woke nobody")???;
    let after = granted.saturating_duration_since(released);
    expect!(after < Duration::from_secs(1), "woken {after:?} after the release by Java");

    let refused = java.send("t2 tryLock demo:both").await?;
    expect!(java.answer(refused).await? == false, "Java got in beside {}", pod.name);
    say!("java", "tryLock: no; waits for {}", pod.name);
    let waiting = java.send("t2 lock demo:both").await?;
    sleep(Duration::from_millis(1_200)).await;
    expect!(!guard.is_lost(), "Java took the lock from {}", pod.name);
    say!(pod.name, "unlocks");
    let released = Instant::now();
    guard.unlock().await?;
    timeout(Duration::from_secs(5), java.answer(waiting))
        .await
        .map_err(|_| "a release by Rust woke nobody in Java")??;
    say!("java", "has it, {:.0?} after the release began", released.elapsed());
    expect!(released.elapsed() < Duration::from_secs(1), "woken {:?} after the release", released.elapsed());
    let unlocked = java.send("t2 unlock demo:both").await?;
    java.answer(unlocked).await?;
    expect!(!lock.is_locked().await?, "the lock is not free");
    say!("java", "unlocks; the lock is free");
    java.quit().await
}

/// The Redisson process: a command a line in, a JSON object a line out.
struct Java {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    redisson: String,
    sent: u64,
}

impl Java {
    async fn start(command: &str, url: &str) -> Outcome<Java> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command} \"$@\""), "sh", url, "3000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        let mut java = Java { child, input, output, redisson: String::new(), sent: 0 };
        let ready =
            timeout(Duration::from_secs(60), java.line()).await.map_err(|_| "the Java process does not start")??;
        java.redisson = ready["redisson"].as_str().unwrap_or("of some version").to_owned();
        Ok(java)
    }

    async fn send(&mut self, command: &str) -> Outcome<u64> {
        self.sent += 1;
        self.input.write_all(format!("{command}\n").as_bytes()).await?;
        self.input.flush().await?;
        Ok(self.sent)
    }

    /// The result of a command. The scenes ask for one answer at a time.
    async fn answer(&mut self, id: u64) -> Outcome<Value> {
        loop {
            let mut line = self.line().await?;
            if line["id"] == id {
                expect!(line["ok"] == true, "Java: {line}");
                return Ok(line["result"].take());
            }
        }
    }

    async fn line(&mut self) -> Outcome<Value> {
        let line = self.output.next_line().await?.ok_or("the Java process has ended")?;
        Ok(serde_json::from_str(&line)?)
    }

    async fn quit(mut self) -> Outcome<()> {
        self.send("quit").await?;
        timeout(Duration::from_secs(10), self.child.wait()).await.map_err(|_| "the Java process does not end")??;
        Ok(())
    }
}

/// The server, spoken to by hand: what the lock client has no business with.
struct Server {
    address: String,
}

impl Server {
    fn new(url: &str) -> Outcome<Server> {
        let rest = url.strip_prefix("redis://").or_else(|| url.strip_prefix("valkey://"));
        let address = rest.and_then(|rest| rest.split('/').next()).unwrap_or_default();
        expect!(
            !address.is_empty() && !address.contains('@'),
            "the demonstration wants a URL like redis://127.0.0.1:6390"
        );
        let port = if address.contains(':') { "" } else { ":6379" };
        Ok(Server { address: format!("{address}{port}") })
    }

    /// One command on a connection of its own; the first line of the reply, or the text of a bulk string.
    async fn command(&self, words: &[&str]) -> Outcome<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        let mut stream = BufReader::new(TcpStream::connect(&self.address).await?);
        stream.get_mut().write_all(request.as_bytes()).await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        expect!(!line.starts_with('-'), "the server says: {}", line.trim_end());
        if let Some(length) = line.strip_prefix('$') {
            let mut bulk = vec![0; length.trim_end().parse()?];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut bulk).await?;
            line = String::from_utf8(bulk)?;
        }
        Ok(line.trim_end().to_owned())
    }
}
