//! From settings to a connected client, and what is known of its connection.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::{Client, SubscriberClient};
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::config::{Config, ReconnectPolicy, Server, ServerConfig};
use fred::types::{Builder, ConnectHandle};
use futures::future::BoxFuture;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::time::Instant;

use crate::error::{ConnectError, ConnectErrorKind, Source};

/// The longest that one step of connecting may take; several fit into the connect timeout.
const STEP: Duration = Duration::from_secs(3);

/// Between two tries of the first connection.
const PAUSE: Duration = Duration::from_millis(100);

/// How many commands fred may hold before it refuses more.
const COMMAND_BUFFER: usize = 100_000;

/// Where to, and how. Has no `Debug`: a password may stand in the URL.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    /// Instead of the one in the URL.
    pub(crate) database: Option<u8>,
    /// For CLIENT SETNAME.
    pub(crate) label: Option<String>,
    pub(crate) connect_timeout: Duration,
    /// Try on for ever.
    pub(crate) wait_for_server: bool,
}

/// What differs between the rooms that connect.
pub(super) struct Tuning {
    pub(super) command_timeout: Duration,
    /// How many events may wait to be read.
    pub(super) events: usize,
}

/// A kind of fred client.
pub(super) trait Build: ClientLike + EventInterface {
    fn build(builder: &Builder) -> Result<Self, FredError>;
}

impl Build for Client {
    fn build(builder: &Builder) -> Result<Self, FredError> {
        builder.build()
    }
}

impl Build for SubscriberClient {
    fn build(builder: &Builder) -> Result<Self, FredError> {
        builder.build_subscriber_client()
    }
}

/// A connected client. Its task ends with this value.
pub(super) struct Dialled<C> {
    pub(super) client: C,
    pub(super) link: Link,
    pub(super) router: Router,
}

/// The task that drives a client's connection. Dropping a client does not end it; dropping this does.
pub(super) struct Router(ConnectHandle);

impl Router {
    pub(super) fn start(client: &impl ClientLike) -> Self {
        Router(client.connect())
    }

    /// When the task is over, with the reason if there is one.
    pub(super) async fn ended(&mut self) -> Option<FredError> {
        match (&mut self.0).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(FredError::new(ErrorKind::Canceled, "the connection's task ended")),
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is known of a connection: its number, and whether it is up.
pub(super) struct Link {
    reconnects: Receiver<Server>,
    errors: Receiver<(FredError, Option<Server>)>,
    /// Counts connections, from 1.
    pub(super) epoch: u64,
    pub(super) up: bool,
    /// Why it is down.
    pub(super) error: Option<Source>,
}

impl Link {
    fn new(client: &impl EventInterface) -> Self {
        Link { reconnects: client.reconnect_rx(), errors: client.error_rx(), epoch: 0, up: false, error: None }
    }

    /// Takes in what has happened. Whether there is a new connection.
    pub(super) fn look(&mut self) -> bool {
        if self.reconnects.is_empty() && self.errors.is_empty() {
            return false;
        }
        if let Some(error) = last(&mut self.errors) {
            self.up = false;
            self.error = error.map(|(error, _)| Arc::new(error) as Source).or(self.error.take());
        }
        let before = self.epoch;
        loop {
            match self.reconnects.try_recv() {
                Ok(_) => self.epoch += 1,
                Err(TryRecvError::Lagged(missed)) => self.epoch += missed,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        let new = self.epoch > before;
        if new {
            // Errors of the old connection were there before the new one was: none of these must bring it down. One that is
            // newer may go with them; then a command runs into the broken connection and fails, which is no worse.
            last(&mut self.errors);
            self.up = true;
        }
        new
    }

    /// Ends when there may be something to [`look`](Link::look) at. To be made before looking.
    pub(super) fn watch(client: &impl EventInterface) -> BoxFuture<'static, ()> {
        let (mut reconnects, mut errors) = (client.reconnect_rx(), client.error_rx());
        Box::pin(async move {
            tokio::select! {
                _ = reconnects.recv() => {}
                _ = errors.recv() => {}
            }
        })
    }
}

/// The last of what a receiver holds; `Some(None)` when only losses can be told.
fn last<T: Clone>(receiver: &mut Receiver<T>) -> Option<Option<T>> {
    let mut found = None;
    loop {
        match receiver.try_recv() {
            Ok(value) => found = Some(Some(value)),
            Err(TryRecvError::Lagged(_)) => found = Some(None),
            Err(TryRecvError::Empty | TryRecvError::Closed) => return found,
        }
    }
}

/// Connects. Dropping the future leaves nothing behind.
pub(super) async fn dial<C: Build>(endpoint: &Endpoint, tuning: &Tuning) -> Result<Dialled<C>, ConnectError> {
    let config = config(endpoint)?;
    let place = place(&config);
    let step = endpoint.connect_timeout.min(STEP);
    let mut policy = ReconnectPolicy::new_exponential(0, 20, 500, 2);
    policy.set_jitter(20);
    let mut builder = Builder::from_config(config);
    builder
        .with_connection_config(|c| {
            c.max_command_attempts = 1;
            c.connection_timeout = step;
            c.internal_command_timeout = step;
            c.max_command_buffer_len = COMMAND_BUFFER;
            c.tcp.nodelay = Some(true);
        })
        .with_performance_config(|p| {
            p.default_command_timeout = tuning.command_timeout;
            p.broadcast_channel_capacity = tuning.events;
        })
        .set_policy(policy);
    let deadline = Instant::now() + endpoint.connect_timeout;
    loop {
        let client = C::build(&builder).map_err(|e| failed(&place, e))?;
        let error = match tokio::time::timeout_at(later(endpoint, deadline), first_connection(client)).await {
            Ok(Ok(dialled)) => return Ok(dialled),
            Ok(Err(error)) => failed(&place, error),
            Err(_) => ConnectError {
                kind: ConnectErrorKind::Timeout,
                message: format!("no answer from {place} within {:?}", endpoint.connect_timeout).into(),
                source: None,
            },
        };
        let may_change = match error.kind {
            ConnectErrorKind::Unreachable => endpoint.wait_for_server || error.message.contains("LOADING"),
            ConnectErrorKind::Timeout => true,
            _ => false,
        };
        if !may_change || Instant::now() + PAUSE >= later(endpoint, deadline) {
            return Err(error);
        }
        tracing::debug!(server = place, error = %error, "no connection yet");
        tokio::time::sleep(PAUSE).await;
    }
}

fn later(endpoint: &Endpoint, deadline: Instant) -> Instant {
    match endpoint.wait_for_server {
        true => Instant::now() + Duration::from_secs(86_400 * 365),
        false => deadline,
    }
}

async fn first_connection<C: Build>(client: C) -> Result<Dialled<C>, FredError> {
    let mut link = Link::new(&client);
    let mut reconnects = client.reconnect_rx();
    let mut router = Router::start(&client);
    tokio::select! {
        biased;
        _ = reconnects.recv() => {}
        error = router.ended() => {
            return Err(error.unwrap_or_else(|| FredError::new(ErrorKind::Canceled, "the connection was closed")));
        }
    }
    link.look();
    Ok(Dialled { client, link, router })
}

/// fred's configuration for `endpoint`. Its errors never quote the URL.
pub(super) fn config(endpoint: &Endpoint) -> Result<Config, ConnectError> {
    let url = endpoint.url.as_str();
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(bad_url("it has no scheme; `redis://host:port` is wanted"));
    };
    let scheme = scheme.to_ascii_lowercase();
    let mut config = match scheme.as_str() {
        "redis" | "valkey" => centralized(&format!("redis://{rest}"))?,
        "rediss" | "valkeys" if cfg!(any(feature = "rustls", feature = "native-tls")) => {
            centralized(&format!("rediss://{rest}"))?
        }
        "rediss" | "valkeys" => {
            return Err(ConnectError {
                kind: ConnectErrorKind::TlsNotBuilt,
                message: format!("`{scheme}://` needs the feature `rustls` or `native-tls`").into(),
                source: None,
            });
        }
        "unix" | "redis+unix" | "valkey+unix" | "redis+socket" => unix(rest)?,
        s if s.ends_with("-cluster") || s.ends_with("-sentinel") => {
            return Err(ConnectError {
                kind: ConnectErrorKind::Unsupported,
                message: "clusters and sentinels are not supported yet".into(),
                source: None,
            });
        }
        _ => return Err(bad_url("its scheme is not one of redis, rediss, valkey, valkeys, redis+unix")),
    };
    if let Some(database) = endpoint.database {
        config.database = Some(database);
    }
    // A SELECT of the database that is selected anyway would only need a right more.
    config.database = config.database.filter(|&database| database != 0);
    Ok(config)
}

fn centralized(url: &str) -> Result<Config, ConnectError> {
    Config::from_url_centralized(url)
        .map_err(|_| bad_url("`scheme://[user[:password]@]host[:port][/database]`, database 0 to 255, is wanted"))
}

#[cfg(unix)]
fn unix(rest: &str) -> Result<Config, ConnectError> {
    // A URL with credentials needs a host, which then means nothing.
    let rest = match rest.split_once("@/") {
        Some((credentials, path)) => format!("{credentials}@unix/{path}"),
        None => rest.to_owned(),
    };
    let bad = || bad_url("`redis+unix://[user:password@]/path` is wanted");
    let mut config = Config::from_url_unix(&format!("redis+unix://{rest}")).map_err(|_| bad())?;
    match &config.server {
        ServerConfig::Unix { path } if path.as_os_str().len() > 1 => {}
        _ => return Err(bad()),
    }
    if let Some((_, query)) = rest.split_once('?')
        && let Some(database) = query.split('&').find_map(|pair| pair.strip_prefix("db="))
    {
        config.database = Some(database.parse().map_err(|_| bad_url("its database is not in 0 to 255"))?);
    }
    Ok(config)
}

#[cfg(not(unix))]
fn unix(_: &str) -> Result<Config, ConnectError> {
    Err(bad_url("there are no unix sockets here"))
}

fn bad_url(why: &str) -> ConnectError {
    ConnectError {
        kind: ConnectErrorKind::BadUrl,
        message: format!("the URL cannot be used: {why}").into(),
        source: None,
    }
}

/// Where `config` leads, without credentials.
fn place(config: &Config) -> String {
    match &config.server {
        ServerConfig::Centralized { server } => format!("{}:{}", server.host, server.port),
        #[cfg(unix)]
        ServerConfig::Unix { path } => path.display().to_string(),
        _ => "the server".to_owned(),
    }
}

/// Why the first connection failed.
fn failed(place: &str, error: FredError) -> ConnectError {
    use ConnectErrorKind::*;
    let words = error.details();
    let kind = match error.kind() {
        ErrorKind::Auth => Authentication,
        ErrorKind::Timeout => Timeout,
        _ if words.starts_with("NOPERM") || words.starts_with("DENIED") => Permission,
        _ if words.contains("AUTH") || words.contains("invalid password") => Authentication,
        _ if words.contains("DB index") => BadUrl,
        _ => Unreachable,
    };
    ConnectError { kind, message: format!("{place}: {words}").into(), source: Some(Arc::new(error)) }
}

/// A label as CLIENT SETNAME takes it: no spaces, nothing that is not ASCII.
pub(super) fn client_name(label: &str) -> String {
    label.chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect()
}
