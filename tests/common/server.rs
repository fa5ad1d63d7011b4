//! A real Redis for each test: `REDIS_URL` if set, else a `redis-server` or `valkey-server` from PATH on a free loopback
//! port with a directory of its own, else a container. Killed on drop. To test with another version, put its `redis-server`
//! first on PATH.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::docker::Container;
use super::probe::Probe;

const START: Duration = Duration::from_secs(10);
/// For tests that make a server fail from inside.
const UNLOCKED: [&str; 4] = ["--enable-debug-command", "yes", "--enable-protected-configs", "yes"];

pub struct TestServer {
    url: String,
    port: u16,
    kind: Kind,
}

enum Kind {
    Shared,
    Process { child: Child, dir: tempfile::TempDir, args: Vec<String> },
    Container(Box<Container>),
}

impl TestServer {
    /// A server for a test that breaks nothing: may be the one of `REDIS_URL`, so use [`super::unique_key`].
    pub async fn start() -> TestServer {
        match std::env::var("REDIS_URL") {
            Ok(url) if !url.is_empty() => {
                let port = super::probe::Address::of(&url).port;
                TestServer { url, port, kind: Kind::Shared }
            }
            _ => Self::own().await,
        }
    }

    /// A server of the test's own, to be broken at will.
    pub async fn own() -> TestServer {
        Self::own_with(&[]).await
    }

    /// The same with arguments, as `&["--requirepass", "secret"]`.
    pub async fn own_with(args: &[&str]) -> TestServer {
        let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
        if binary().is_none() {
            return Self::in_container(&args).await;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut last_words = String::new();
        for _ in 0..20 {
            let port = free_port();
            match launch(port, dir.path(), &args).await {
                Ok(child) => {
                    let url = format!("redis://127.0.0.1:{port}");
                    return TestServer { url, port, kind: Kind::Process { child, dir, args } };
                }
                // Somebody else took the port in between; anything else will not get better.
                Err(words) if words.contains("in use") => last_words = words,
                Err(words) => panic!("the server does not start with {args:?}: {words}"),
            }
        }
        panic!("no free port for a server: {last_words}");
    }

    async fn in_container(args: &[String]) -> TestServer {
        let args: Vec<String> = UNLOCKED.iter().map(|a| a.to_string()).chain(args.iter().cloned()).collect();
        match Container::start_with(&args).await {
            Ok(container) => {
                TestServer { url: container.url(), port: container.port, kind: Kind::Container(Box::new(container)) }
            }
            Err(error) => panic!(
                "no Redis for the tests: set REDIS_URL, or install redis-server or valkey-server \
                 (apt-get install redis-server), or start a Docker engine ({error})"
            ),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of its unix socket.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.directory().join("redis.sock").display())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        match &self.kind {
            Kind::Process { child, .. } => child.id(),
            _ => panic!("{OWN}"),
        }
    }

    /// The oracle: a connection of its own that only looks.
    pub async fn probe(&self) -> Probe {
        Probe::at(&self.url).await
    }

    /// Its working directory: data, log and unix socket.
    pub fn directory(&self) -> &Path {
        match &self.kind {
            Kind::Process { dir, .. } => dir.path(),
            _ => panic!("{OWN}"),
        }
    }

    fn child(&mut self) -> &mut Child {
        match &mut self.kind {
            Kind::Process { child, .. } => child,
            _ => panic!("{OWN}"),
        }
    }

    /// Freezes it: connections stay, nothing is answered.
    pub fn freeze(&mut self) {
        super::child::signal(self.pid(), "-STOP");
    }

    pub fn thaw(&mut self) {
        super::child::signal(self.pid(), "-CONT");
    }

    pub fn kill9(&mut self) {
        end(self.child());
    }

    /// Starts it again on the same port, with no data. Kills it first if it runs.
    pub async fn restart_empty(&mut self) {
        let port = self.port;
        let Kind::Process { child, dir, args } = &mut self.kind else { panic!("{OWN}") };
        end(child);
        let deadline = Instant::now() + START;
        loop {
            match launch(port, dir.path(), args).await {
                Ok(new) => {
                    *child = new;
                    return;
                }
                Err(words) => assert!(Instant::now() < deadline, "no restart on port {port}: {words}"),
            }
        }
    }
}

const OWN: &str = "this test needs a server process of its own: install redis-server";

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Kind::Process { child, .. } = &mut self.kind {
            end(child);
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The server program on PATH and its major version.
fn binary() -> Option<(&'static str, u32)> {
    static FOUND: OnceLock<Option<(&str, u32)>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let name = ["redis-server", "valkey-server"].into_iter().find(|b| on_path(b))?;
        let words = Command::new(name).arg("--version").output().expect("run the server program").stdout;
        // "Redis server v=7.0.15 sha=..."
        let words = String::from_utf8_lossy(&words).into_owned();
        let version = words.split("v=").nth(1).and_then(|v| v.split('.').next()?.parse().ok());
        Some((name, version.unwrap_or_else(|| panic!("no version in {words:?}"))))
    })
}

fn on_path(binary: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(binary).is_file()))
}

/// Below the range from which the system takes the ports of outgoing connections, so that none of these sits on it when a
/// server is started again.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Apart for each test process; the factor is prime to the length of the range.
        let n = std::process::id().wrapping_mul(7919).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (n % 22_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Starts a server and waits until this very child answers; its last words if it ended instead.
async fn launch(port: u16, dir: &Path, args: &[String]) -> Result<Child, String> {
    let (program, version) = binary().expect("a server program");
    let log = dir.join("log");
    let _ = std::fs::remove_file(&log);
    let mut command = Command::new(program);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--protected-mode", "no", "--daemonize", "no"])
        .args(["--save", "", "--appendonly", "no", "--logfile", "log", "--unixsocket", "redis.sock"])
        .arg("--dir")
        .arg(dir);
    if version >= 7 {
        // Older ones allow both and do not know the options.
        command.args(UNLOCKED);
    }
    let mut child = command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start a server");
    let words = || std::fs::read_to_string(&log).unwrap_or_default();
    let last_words = || words().lines().rev().take(3).collect::<Vec<_>>().join(" / ");
    let deadline = Instant::now() + START;
    while Instant::now() < deadline {
        if child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return Err(format!("ended: {}", last_words()));
        }
        // Its own log tells it from a stranger on that port; any answer will do (NOAUTH is one).
        if words().contains("eady to accept connections")
            && let Ok(probe) = Probe::try_connect(port).await
            && probe.try_cmd(&["PING"]).await.is_ok()
        {
            return Ok(child);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    end(&mut child);
    Err(format!("no answer within {START:?}: {}", last_words()))
}
