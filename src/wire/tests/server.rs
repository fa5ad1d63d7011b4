//! A server of one's own, a plain connection to it, and a proxy that loses things. Nothing of the crate is known here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// A server of one's own, killed when it is dropped.
pub(super) struct Server {
    pub(super) child: Child,
    pub(super) port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    pub(super) fn start(args: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Server::start_on(port, args)
    }

    pub(super) fn start_on(port: u16, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"])
            .args(args)
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server on PATH");
        let server = Server { child, port, _dir: dir };
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(server.addr()).is_err() {
            assert!(Instant::now() < until, "the server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    pub(super) fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(super) fn probe(&self) -> Probe {
        let stream = TcpStream::connect(self.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Probe(BufReader::new(stream))
    }

    pub(super) fn signal(&self, signal: &str) {
        // The shell has its own; a small machine has no program of that name.
        let kill = format!("kill {signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection beside fred: each reply flattened to text.
pub(super) struct Probe(pub(super) BufReader<TcpStream>);

impl Probe {
    pub(super) fn ask(&mut self, command: &str) -> String {
        self.ask_args(&command.split(' ').collect::<Vec<_>>())
    }

    pub(super) fn ask_args(&mut self, args: &[&str]) -> String {
        let mut out = format!("*{}\r\n", args.len());
        for arg in args {
            out.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        self.0.get_mut().write_all(out.as_bytes()).unwrap();
        self.read()
    }

    pub(super) fn read(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let (kind, rest) = line.split_at(1);
        match kind {
            "$" if rest == "-1" => "nil".into(),
            "$" => {
                let mut body = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut body).unwrap();
                String::from_utf8_lossy(&body[..body.len() - 2]).into()
            }
            "*" if rest == "-1" => "nil".into(),
            "*" => (0..rest.parse::<usize>().unwrap()).map(|_| self.read()).collect::<Vec<_>>().join(" "),
            _ => rest.into(),
        }
    }

    /// How often a command was executed.
    pub(super) fn calls(&mut self, command: &str) -> u64 {
        let stats = self.ask("INFO commandstats");
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.map_or(0, |line| line.split(['=', ',']).nth(1).unwrap().parse().unwrap())
    }
}

/// Everything gets through.
pub(super) const PASS: u8 = 0;
/// The next reply is swallowed, and the connection cut.
pub(super) const CUT_REPLY: u8 = 1;
/// Nobody gets through.
pub(super) const REFUSE: u8 = 2;

/// Stands before a server and loses things, as its mode says.
pub(super) struct Proxy {
    pub(super) port: u16,
    pub(super) mode: Arc<AtomicU8>,
}

impl Proxy {
    pub(super) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(AtomicU8::new(PASS));
        let shared = mode.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.load(Ordering::SeqCst) == REFUSE {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else { continue };
                let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
                let mode = shared.clone();
                std::thread::spawn(move || {
                    let (mut from, mut to) = (server, client);
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = from.read(&mut buffer) {
                        if mode.load(Ordering::SeqCst) != PASS {
                            let _ = mode.compare_exchange(CUT_REPLY, PASS, Ordering::SeqCst, Ordering::SeqCst);
                            break;
                        }
                        if to.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Proxy { port, mode }
    }
}
