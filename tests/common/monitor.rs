//! What the server executes, as its own MONITOR tells it. The oracle is told from others by its address, which a server in a
//! container does not see: count commands on a server of this machine.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;

use super::probe::{Probe, Reply, SOURCE, encode, open, read_reply};

/// One executed command.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its connection's address; `lua` for a command inside a script.
    pub by: String,
    /// The command and its arguments, as MONITOR prints them: unprintable bytes escaped.
    pub args: Vec<String>,
}

impl Seen {
    /// In capitals.
    pub fn name(&self) -> String {
        self.args.first().map(|a| a.to_uppercase()).unwrap_or_default()
    }

    pub fn in_script(&self) -> bool {
        self.by == "lua"
    }
}

/// Collects from its start on; stops when dropped.
pub struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
    probe: Probe,
}

impl Monitor {
    pub async fn start(port: u16) -> Monitor {
        let mut stream = open("127.0.0.1", port).await.expect("the monitor connects");
        stream.get_mut().write_all(&encode(&["MONITOR"])).await.expect("write");
        assert_eq!(read_reply(&mut stream).await.expect("answer"), Reply::Status("OK".into()));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        let task = tokio::spawn(async move {
            while let Ok(Reply::Status(line)) = read_reply(&mut stream).await {
                sink.lock().push(line);
            }
        });
        Monitor { lines, task, probe: Probe::connect(port).await }
    }

    /// Everything that was executed so far, in order, without PINGs and what the oracle sent.
    pub async fn seen(&self) -> Vec<Seen> {
        // The mark comes back through the same stream, behind everything before it.
        let mark = super::unique_key("monitor-mark");
        self.probe.cmd(&["ECHO", &mark]).await;
        super::eventually(Duration::from_secs(5), "the monitor catches up", || async {
            self.lines.lock().iter().any(|l| l.contains(&mark))
        })
        .await;
        let oracle = format!("{SOURCE}:");
        let seen: Vec<Seen> = self.lines.lock().iter().filter_map(|l| parse(l)).collect();
        seen.into_iter()
            .filter(|s| !s.by.starts_with(&oracle) && !["PING", "ECHO"].contains(&s.name().as_str()))
            .collect()
    }

    /// The names of the commands that clients sent, in capitals.
    pub async fn sent(&self) -> Vec<String> {
        self.seen().await.iter().filter(|s| !s.in_script()).map(Seen::name).collect()
    }

    /// The names of the commands that scripts called, in capitals.
    pub async fn in_scripts(&self) -> Vec<String> {
        self.seen().await.iter().filter(|s| s.in_script()).map(Seen::name).collect()
    }

    pub fn clear(&self) {
        self.lines.lock().clear();
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `1701387600.123456 [0 127.0.0.1:5000] "GET" "a key"`
fn parse(line: &str) -> Option<Seen> {
    let (head, mut rest) = line.split_once("] ")?;
    let by = head.split_once('[')?.1.split_once(' ')?.1.to_owned();
    let mut args = Vec::new();
    while let Some(quoted) = rest.trim_start().strip_prefix('"') {
        let mut escaped = false;
        let end = quoted.find(|c| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        })?;
        args.push(quoted[..end].replace("\\\"", "\"").replace("\\\\", "\\"));
        rest = &quoted[end + 1..];
    }
    Some(Seen { by, args })
}
