//! A Redisson process to test against: starts `tests/java/peer` and talks to it (protocol: tests/java/README.md).
//!
//! ```ignore
//! let Some(java) = JavaPeer::start(server.url(), 3_000).await else { return };
//! let mut waiting = java.send("t1", "lock order:42").await;
//! assert!(waiting.is_pending_for(Duration::from_millis(300)).await);
//! waiting.result(Duration::from_secs(1)).await.value();
//! ```
//!
//! Nothing here lives on a runtime: a peer can be shared by tests, each with a runtime of its own.
#![allow(dead_code, missing_docs, unreachable_pub)] // Each test binary uses a part of it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::sync::oneshot;

/// How long a JVM may take until Redisson is connected, on a machine that is busy with other tests.
const START: Duration = Duration::from_secs(60);
/// How long an answer may take that depends on nobody else.
const PROMPT: Duration = Duration::from_secs(10);

/// A Redisson process. Killed when dropped.
pub struct JavaPeer {
    uuid: String,
    redisson: String,
    child: Mutex<Child>,
    input: Mutex<Input>,
    answers: Arc<Mutex<Answers>>,
}

struct Input {
    pipe: ChildStdin,
    sent: u64,
}

#[derive(Default)]
struct Answers {
    waiting: HashMap<u64, oneshot::Sender<Value>>,
    ended: bool,
}

impl JavaPeer {
    /// Starts a peer on that server, with that `lockWatchdogTimeout`. `None`, and one line on stderr, where there is no Java
    /// or no Maven; a panic instead in CI, which has to have both.
    pub async fn start(url: &str, watchdog_ms: u64) -> Option<JavaPeer> {
        if let Err(missing) = available() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}: in CI the Java suite has to run");
            static SAID: Once = Once::new();
            // Past the capture of test output: a skipped test must not look like one that passed.
            SAID.call_once(|| drop(writeln!(std::io::stderr(), "SKIPPED: the tests with Redisson: {missing}")));
            return None;
        }
        let url = url.to_owned();
        let peer = tokio::task::spawn_blocking(move || start(&url, watchdog_ms)).await.expect("start a peer");
        Some(peer)
    }

    /// The first half of this process's holder fields in Redis.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The version of Redisson.
    pub fn redisson(&self) -> &str {
        &self.redisson
    }

    /// Sends a command for one of the peer's threads, such as `lock order:42`. Does not wait for its end; dropping what it
    /// returns does not undo it.
    pub async fn send(&self, thread: &str, command: &str) -> Pending {
        let line = format!("{thread} {command}");
        assert!(!thread.contains(char::is_whitespace) && !line.contains('\n'), "not one command: {line:?}");
        let (answer, answered) = oneshot::channel();
        let mut input = self.input.lock().unwrap();
        input.sent += 1;
        {
            let mut answers = self.answers.lock().unwrap();
            // A command to a dead process is answered as one that dies: by nobody.
            if !answers.ended {
                answers.waiting.insert(input.sent, answer);
            }
        }
        // A few bytes into a pipe that is read at once: does not block. Fails if the process is gone; see above.
        let _ = input.pipe.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.pipe.flush());
        Pending { line, answered }
    }

    /// Sends a command that nobody can delay, and waits for its answer.
    pub async fn ask(&self, thread: &str, command: &str) -> Answer {
        self.send(thread, command).await.result(PROMPT).await
    }

    /// Ends the process as `kill -9` does. Its open commands are never answered.
    pub fn kill9(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for JavaPeer {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// A command that was sent.
pub struct Pending {
    line: String,
    answered: oneshot::Receiver<Value>,
}

impl Pending {
    /// The answer, which has to come within that time.
    pub async fn result(&mut self, within: Duration) -> Answer {
        match tokio::time::timeout(within, &mut self.answered).await {
            Ok(Ok(json)) => Answer { json },
            Ok(Err(_)) => panic!("the Java process ended before it answered `{}`", self.line),
            Err(_) => panic!("no answer to `{}` within {within:?}", self.line),
        }
    }

    /// Waits that long; true if there is no answer then. An answer is for [`Pending::result`] to take.
    pub async fn is_pending_for(&mut self, time: Duration) -> bool {
        let end = tokio::time::Instant::now() + time;
        while self.answered.is_empty() {
            if tokio::time::Instant::now() >= end {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        false
    }
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Answer {
    json: Value,
}

impl Answer {
    /// What it returned. It must not have thrown.
    #[track_caller]
    pub fn value(&self) -> &Value {
        assert!(self.exception().is_none(), "thrown in Java: {}", self.json);
        &self.json["result"]
    }

    /// What it returned, if that is a boolean.
    #[track_caller]
    pub fn yes(&self) -> bool {
        self.value().as_bool().unwrap_or_else(|| panic!("not a boolean: {}", self.json))
    }

    /// What it returned, if that is a whole number.
    #[track_caller]
    pub fn number(&self) -> i64 {
        self.value().as_i64().unwrap_or_else(|| panic!("not a number: {}", self.json))
    }

    /// The class of the exception, if it threw one.
    pub fn exception(&self) -> Option<&str> {
        self.json["error"].as_str()
    }

    /// How long it took, from when the thread took it up.
    pub fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.json["elapsedMs"].as_f64().expect("elapsedMs") / 1e3)
    }

    /// When it was over, on this machine's wall clock.
    pub fn ended_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs_f64(self.json["endedAt"].as_f64().expect("endedAt") / 1e3)
    }
}

fn launcher() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/java/peer")
}

/// What is missing for a Redisson process, if anything is.
fn available() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let on_path = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
            let jdk = std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
            let java = jdk.map_or_else(|| on_path("java"), |home| Path::new(&home).join("bin/java").is_file());
            match (java, on_path("mvn")) {
                (true, true) => Ok(()),
                (false, _) => Err("no `java` here (on Debian: apt-get install default-jdk-headless maven)".to_owned()),
                (true, false) => Err("no `mvn` here (on Debian: apt-get install maven)".to_owned()),
            }
        })
        .clone()
}

fn start(url: &str, watchdog_ms: u64) -> JavaPeer {
    // Apart from the start, which has a time limit, and only once: the first build resolves a few dozen jars.
    static BUILT: OnceLock<bool> = OnceLock::new();
    let built = *BUILT.get_or_init(|| {
        let status = Command::new(launcher()).arg("--build").stdin(Stdio::null()).stdout(Stdio::null()).status();
        status.expect("run tests/java/peer").success()
    });
    assert!(built, "tests/java/peer could not be built; its words are on stderr");

    let mut child = Command::new(launcher())
        .args([url, &watchdog_ms.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start tests/java/peer");
    let input = Mutex::new(Input { pipe: child.stdin.take().expect("piped"), sent: 0 });
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let answers = Arc::new(Mutex::new(Answers::default()));
    let (ready, is_ready) = oneshot::channel();
    answers.lock().unwrap().waiting.insert(0, ready);
    let mut peer = JavaPeer {
        uuid: String::new(),
        redisson: String::new(),
        child: Mutex::new(child),
        input,
        answers: answers.clone(),
    };
    std::thread::Builder::new()
        .name("java-peer".to_owned())
        .spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let json: Value =
                    serde_json::from_str(&line).unwrap_or_else(|e| panic!("from the Java peer: {line:?}: {e}"));
                let waiting = answers.lock().unwrap().waiting.remove(&json["id"].as_u64().unwrap_or(u64::MAX));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(json);
                }
            }
            let mut answers = answers.lock().unwrap();
            answers.ended = true;
            answers.waiting.clear();
        })
        .expect("start a thread");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    match runtime.block_on(async { tokio::time::timeout(START, is_ready).await }) {
        Ok(Ok(ready)) => {
            peer.uuid = ready["uuid"].as_str().expect("uuid").to_owned();
            peer.redisson = ready["redisson"].as_str().unwrap_or("?").to_owned();
            peer
        }
        Ok(Err(_)) => panic!("the Java peer ended before it was connected; its words are on stderr"),
        Err(_) => panic!("the Java peer was not connected within {START:?}"),
    }
}
