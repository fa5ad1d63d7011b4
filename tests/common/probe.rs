//! The oracle: a small RESP client of our own, so that what it sees does not depend on the client under test.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex as SyncMutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    pub fn text(&self) -> Option<String> {
        match self {
            Reply::Status(s) => Some(s.clone()),
            Reply::Bulk(Some(b)) => Some(String::from_utf8_lossy(b).into_owned()),
            _ => None,
        }
    }

    pub fn int(&self) -> i64 {
        match self {
            Reply::Int(n) => *n,
            other => panic!("not a number: {other:?}"),
        }
    }

    pub fn list(&self) -> Vec<Reply> {
        match self {
            Reply::Array(list) => list.clone(),
            other => panic!("not a list: {other:?}"),
        }
    }
}

/// One connection; commands go one at a time.
pub struct Probe {
    stream: Mutex<BufReader<TcpStream>>,
}

impl Probe {
    pub async fn connect(port: u16) -> Probe {
        Self::try_connect(port).await.expect("the oracle connects")
    }

    pub async fn try_connect(port: u16) -> std::io::Result<Probe> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Probe { stream: Mutex::new(BufReader::new(stream)) })
    }

    pub async fn cmd(&self, args: &[&str]) -> Reply {
        self.try_cmd(args).await.expect("the oracle is answered")
    }

    pub async fn try_cmd(&self, args: &[&str]) -> std::io::Result<Reply> {
        let mut stream = self.stream.lock().await;
        stream.get_mut().write_all(&encode(args)).await?;
        read_reply(&mut stream).await
    }

    /// Field and count of each holder.
    pub async fn hgetall(&self, key: &str) -> BTreeMap<String, String> {
        let list = self.cmd(&["HGETALL", key]).await.list();
        list.chunks(2).map(|p| (p[0].text().unwrap(), p[1].text().unwrap())).collect()
    }

    /// The one count of a lock, 0 if there is no key; panics when two hold it.
    pub async fn count(&self, key: &str) -> u64 {
        let holders = self.hgetall(key).await;
        assert!(holders.len() <= 1, "two holders of {key}: {holders:?}");
        holders.values().next().map_or(0, |c| c.parse().unwrap())
    }

    pub async fn exists(&self, key: &str) -> bool {
        self.cmd(&["EXISTS", key]).await.int() == 1
    }

    pub async fn pttl(&self, key: &str) -> i64 {
        self.cmd(&["PTTL", key]).await.int()
    }

    pub async fn get(&self, key: &str) -> Option<String> {
        self.cmd(&["GET", key]).await.text()
    }

    pub async fn set(&self, key: &str, value: &str) {
        self.cmd(&["SET", key, value]).await;
    }

    pub async fn dbsize(&self) -> i64 {
        self.cmd(&["DBSIZE"]).await.int()
    }

    pub async fn numsub(&self, channel: &str) -> i64 {
        self.cmd(&["PUBSUB", "NUMSUB", channel]).await.list()[1].int()
    }

    pub async fn channels(&self) -> Vec<String> {
        self.cmd(&["PUBSUB", "CHANNELS"]).await.list().iter().filter_map(Reply::text).collect()
    }

    /// Lines of CLIENT LIST of one type (`normal`, `pubsub`).
    pub async fn clients(&self, kind: &str) -> Vec<String> {
        let text = self.cmd(&["CLIENT", "LIST", "TYPE", kind]).await.text().unwrap_or_default();
        text.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect()
    }

    /// Calls of a command so far, those inside scripts included.
    pub async fn calls(&self, command: &str) -> u64 {
        let text = self.cmd(&["INFO", "commandstats"]).await.text().unwrap_or_default();
        let prefix = format!("cmdstat_{}:calls=", command.to_lowercase());
        text.lines().find_map(|l| l.strip_prefix(&prefix)?.split(',').next()?.parse().ok()).unwrap_or(0)
    }
}

/// Every command that the server executes, as MONITOR tells it.
pub struct Monitor {
    lines: Arc<SyncMutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
    probe: Probe,
}

impl Monitor {
    pub async fn start(port: u16) -> Monitor {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await.expect("connect"));
        stream.get_mut().write_all(&encode(&["MONITOR"])).await.expect("write");
        assert_eq!(read_reply(&mut stream).await.expect("answer"), Reply::Status("OK".into()));
        let lines = Arc::new(SyncMutex::new(Vec::new()));
        let sink = lines.clone();
        let task = tokio::spawn(async move {
            while let Ok(Reply::Status(line)) = read_reply(&mut stream).await {
                sink.lock().push(line);
            }
        });
        Monitor { lines, task, probe: Probe::connect(port).await }
    }

    /// What clients sent so far (not what scripts did), by command name in capitals; PINGs and the oracle left out.
    pub async fn sent(&self) -> Vec<String> {
        // The mark comes back through the same stream, behind everything before it.
        let mark = super::unique_key("monitor-mark");
        self.probe.cmd(&["ECHO", &mark]).await;
        super::eventually(std::time::Duration::from_secs(5), "the monitor catches up", || async {
            self.lines.lock().iter().any(|l| l.contains(&mark))
        })
        .await;
        let lines = self.lines.lock();
        lines
            .iter()
            .filter(|l| !l.contains(" lua]"))
            .filter_map(|l| Some(l.split_once("] \"")?.1.split('"').next()?.to_uppercase()))
            .filter(|c| c != "PING" && c != "ECHO")
            .collect()
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

fn encode(args: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(format!("${}\r\n", arg.len()).into_bytes());
        out.extend(arg.as_bytes());
        out.extend(b"\r\n");
    }
    out
}

async fn read_line(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = Vec::new();
    if stream.read_until(b'\n', &mut line).await? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

async fn read_reply(stream: &mut BufReader<TcpStream>) -> std::io::Result<Reply> {
    let line = read_line(stream).await?;
    let (kind, rest) = line.split_at(1);
    Ok(match kind {
        "+" => Reply::Status(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Int(rest.parse().expect("a number")),
        "$" => {
            let len: i64 = rest.parse().expect("a length");
            if len < 0 {
                return Ok(Reply::Bulk(None));
            }
            let mut bytes = vec![0; len as usize + 2];
            stream.read_exact(&mut bytes).await?;
            bytes.truncate(len as usize);
            Reply::Bulk(Some(bytes))
        }
        "*" => {
            let len: i64 = rest.parse().expect("a length");
            let mut list = Vec::new();
            for _ in 0..len {
                list.push(Box::pin(read_reply(stream)).await?);
            }
            Reply::Array(list)
        }
        _ => panic!("not RESP: {line:?}"),
    })
}
