//! The oracle: a small RESP client of our own, so that what it sees does not depend on the client under test.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;

/// Where the oracle's connections come from, where the system lets them: so others' can be told from them.
pub(super) const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    /// `None` for every null.
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

    /// The text of an error.
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }
}

/// What a `redis://user:password@host:port/db` says. Nothing is percent-decoded.
pub struct Address {
    pub host: String,
    pub port: u16,
    login: Vec<String>,
    database: String,
}

impl Address {
    pub fn of(url: &str) -> Address {
        let rest = url.strip_prefix("redis://").unwrap_or_else(|| panic!("the oracle speaks only redis://, not {url}"));
        let rest = rest.split('?').next().unwrap();
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, place) = place.rsplit_once('@').unwrap_or(("", place));
        let (host, port) = place.rsplit_once(':').unwrap_or((place, "6379"));
        let login = login.split_once(':').map_or(vec![], |(user, password)| {
            [user, password].into_iter().filter(|part| !part.is_empty()).map(str::to_owned).collect()
        });
        Address { host: host.to_owned(), port: port.parse().expect("a port"), login, database: database.to_owned() }
    }
}

/// One connection; commands go one at a time.
pub struct Probe {
    stream: Mutex<BufReader<TcpStream>>,
}

impl Probe {
    /// To a server on this machine.
    pub async fn connect(port: u16) -> Probe {
        Self::try_connect(port).await.expect("the oracle connects")
    }

    pub async fn try_connect(port: u16) -> std::io::Result<Probe> {
        Ok(Probe { stream: Mutex::new(open("127.0.0.1", port).await?) })
    }

    /// With the user, the password and the database of the URL.
    pub async fn at(url: &str) -> Probe {
        let address = Address::of(url);
        let stream = open(&address.host, address.port).await.expect("the oracle connects");
        let probe = Probe { stream: Mutex::new(stream) };
        if !address.login.is_empty() {
            let auth: Vec<&str> = std::iter::once("AUTH").chain(address.login.iter().map(String::as_str)).collect();
            assert_eq!(probe.cmd(&auth).await, Reply::Status("OK".into()));
        }
        if !address.database.is_empty() {
            assert_eq!(probe.cmd(&["SELECT", &address.database]).await, Reply::Status("OK".into()));
        }
        probe
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

    pub async fn hget(&self, key: &str, field: &str) -> Option<String> {
        self.cmd(&["HGET", key, field]).await.text()
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

    /// Milliseconds; -1 without a time to live, -2 without a key.
    pub async fn pttl(&self, key: &str) -> i64 {
        self.cmd(&["PTTL", key]).await.int()
    }

    pub async fn get(&self, key: &str) -> Option<String> {
        self.cmd(&["GET", key]).await.text()
    }

    pub async fn set(&self, key: &str, value: &str) {
        self.cmd(&["SET", key, value]).await;
    }

    /// Whether there was such a key.
    pub async fn del(&self, key: &str) -> bool {
        self.cmd(&["DEL", key]).await.int() == 1
    }

    pub async fn flushall(&self) {
        assert_eq!(self.cmd(&["FLUSHALL"]).await, Reply::Status("OK".into()));
    }

    pub async fn dbsize(&self) -> i64 {
        self.cmd(&["DBSIZE"]).await.int()
    }

    /// How many connections are subscribed to a channel.
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

    /// Lines of CLIENT LIST for every connection that is not an oracle's.
    pub async fn others(&self) -> Vec<String> {
        let text = self.cmd(&["CLIENT", "LIST"]).await.text().unwrap_or_default();
        let ours = format!(" addr={SOURCE}:");
        text.lines().filter(|l| !l.is_empty() && !l.contains(&ours)).map(str::to_owned).collect()
    }

    /// Closes the connections of one type (`normal`, `pubsub`), not this one; how many there were.
    pub async fn client_kill(&self, kind: &str) -> i64 {
        self.cmd(&["CLIENT", "KILL", "TYPE", kind]).await.int()
    }

    /// Closes one connection; whether there was one.
    pub async fn client_kill_id(&self, id: &str) -> bool {
        self.cmd(&["CLIENT", "KILL", "ID", id]).await.int() == 1
    }

    /// Calls of a command so far, those inside scripts included.
    pub async fn calls(&self, command: &str) -> u64 {
        let text = self.cmd(&["INFO", "commandstats"]).await.text().unwrap_or_default();
        let prefix = format!("cmdstat_{}:calls=", command.to_lowercase());
        text.lines().find_map(|l| l.strip_prefix(&prefix)?.split(',').next()?.parse().ok()).unwrap_or(0)
    }
}

pub(super) async fn open(host: &str, port: u16) -> std::io::Result<BufReader<TcpStream>> {
    let local = if host == "127.0.0.1" { open_from_source(port).await } else { None };
    let stream = match local {
        Some(connected) => connected?,
        None => TcpStream::connect((host.trim_matches(['[', ']']), port)).await?,
    };
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// `None` where this machine has no such address of its own.
async fn open_from_source(port: u16) -> Option<std::io::Result<TcpStream>> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind(SocketAddr::new(IpAddr::V4(SOURCE), 0)).ok()?;
    Some(socket.connect(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)).await)
}

pub(super) fn encode(args: &[&str]) -> Vec<u8> {
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
    Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned())
}

pub(super) async fn read_reply(stream: &mut BufReader<TcpStream>) -> std::io::Result<Reply> {
    let line = read_line(stream).await?;
    let (kind, rest) = line.split_at_checked(1).unwrap_or_else(|| panic!("not RESP: {line:?}"));
    Ok(match kind {
        "+" => Reply::Status(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Int(rest.parse().expect("a number")),
        "$" | "*" => {
            let len: i64 = rest.parse().expect("a length");
            let Ok(len) = usize::try_from(len) else { return Ok(Reply::Bulk(None)) };
            if kind == "$" {
                let mut bytes = vec![0; len + 2];
                stream.read_exact(&mut bytes).await?;
                bytes.truncate(len);
                return Ok(Reply::Bulk(Some(bytes)));
            }
            let mut list = Vec::new();
            for _ in 0..len {
                list.push(Box::pin(read_reply(stream)).await?);
            }
            Reply::Array(list)
        }
        _ => panic!("not RESP: {line:?}"),
    })
}
