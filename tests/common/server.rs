//! A real Redis for each test: `REDIS_URL` if set, else a `redis-server` or `valkey-server` from PATH on a free loopback
//! port with a directory of its own, else a container. Killed on drop.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::docker::Container;
use super::probe::Probe;

pub struct TestServer {
    url: String,
    port: u16,
    kind: Kind,
}

enum Kind {
    Shared,
    Process { child: Child, binary: &'static str, dir: tempfile::TempDir, args: Vec<String> },
    Container(Box<Container>),
}

impl TestServer {
    /// A server for a test that breaks nothing: may be the one of `REDIS_URL`, so use [`super::unique_key`].
    pub async fn start() -> TestServer {
        match std::env::var("REDIS_URL") {
            Ok(url) if !url.is_empty() => {
                let port = url.rsplit(':').next().and_then(|p| p.split('/').next()).and_then(|p| p.parse().ok());
                TestServer { port: port.unwrap_or(6379), url, kind: Kind::Shared }
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
        let Some(binary) = ["redis-server", "valkey-server"].into_iter().find(|b| on_path(b)) else {
            match Container::start().await {
                Ok(container) => {
                    let port = container.port;
                    return TestServer {
                        url: format!("redis://127.0.0.1:{port}"),
                        port,
                        kind: Kind::Container(Box::new(container)),
                    };
                }
                Err(error) => panic!(
                    "no Redis for the tests: set REDIS_URL, or install redis-server or valkey-server \
                     (apt-get install redis-server), or start a Docker engine ({error})"
                ),
            }
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        for _ in 0..20 {
            let port = free_port();
            let mut child = spawn(binary, port, dir.path(), &args);
            if answers(&mut child, port).await {
                let url = format!("redis://127.0.0.1:{port}");
                return TestServer { url, port, kind: Kind::Process { child, binary, dir, args } };
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("{binary} could not be started with {args:?}");
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The oracle: a connection of its own that only looks.
    pub async fn probe(&self) -> Probe {
        Probe::connect(self.port).await
    }

    /// Where its unix socket is, if it was started with one (`--unixsocket redis.sock`).
    pub fn directory(&self) -> &Path {
        match &self.kind {
            Kind::Process { dir, .. } => dir.path(),
            _ => panic!("needs a server of its own"),
        }
    }

    fn child(&mut self) -> &mut Child {
        match &mut self.kind {
            Kind::Process { child, .. } => child,
            _ => panic!("needs a server of its own: install redis-server"),
        }
    }

    fn signal(&mut self, signal: &str) {
        let pid = self.child().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    }

    /// Freezes it: connections stay, nothing is answered.
    pub fn freeze(&mut self) {
        self.signal("-STOP");
    }

    pub fn thaw(&mut self) {
        self.signal("-CONT");
    }

    pub fn kill9(&mut self) {
        let child = self.child();
        child.kill().expect("kill -9");
        child.wait().expect("wait");
    }

    /// Starts it again on the same port, with no data. Kills it first if it runs.
    pub async fn restart_empty(&mut self) {
        let port = self.port;
        let Kind::Process { child, binary, dir, args } = &mut self.kind else { panic!("needs a server of its own") };
        let _ = child.kill();
        let _ = child.wait();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let mut new = spawn(binary, port, dir.path(), args);
            if answers(&mut new, port).await {
                *child = new;
                return;
            }
            let _ = new.kill();
            let _ = new.wait();
            assert!(Instant::now() < deadline, "the server does not start again on port {port}");
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Kind::Process { child, .. } = &mut self.kind {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn on_path(binary: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(binary).is_file()))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

fn spawn(binary: &str, port: u16, dir: &Path, args: &[String]) -> Child {
    Command::new(binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--enable-debug-command", "local", "--enable-protected-configs", "yes", "--daemonize", "no"])
        .arg("--dir")
        .arg(dir)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start a server")
}

/// Whether this very child listens on the port; false when it ended (somebody else had the port).
async fn answers(child: &mut Child, port: u16) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return false;
        }
        if let Ok(probe) = Probe::try_connect(port).await {
            // Any answer will do (NOAUTH is one), if it comes from our child and not from a stranger on that port.
            if let Some(info) = probe.cmd(&["INFO", "server"]).await.text() {
                return info.contains(&format!("process_id:{}", child.id()));
            }
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}
