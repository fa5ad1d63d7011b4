//! One ordered queue of operations over one connection.
//!
//! An operation is queued, then sent, then answered. Whoever pushes only puts it into the queue, from any thread; the
//! lane's task, the [`Driver`], hands it to fred and hears the answer. What becomes of an operation is told once, to the
//! [`Listener`]. Only a queued operation can be taken back, or move to another lane.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::ClientLike;
use fred::types::{Resp3Frame as Frame, Value};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::codec::{self, Command};
use super::connect::{self, Dialled, Endpoint, Link, Router, Tuning};
use super::op::{Answer, Failure, Listener, Op, Reply, Trouble};
use crate::clock::Moment;
use crate::error::{ConnectError, Source};
use crate::script;

/// How often an idle connection is asked whether it lives.
const LIVENESS: Duration = Duration::from_secs(10);

/// How long hanging up may take.
const QUIT: Duration = Duration::from_millis(500);

/// How soon a connection task that ended by itself is started again.
const RESTART: Duration = Duration::from_millis(200);

/// How often the lane's task looks for more before it lets others run.
const ROUNDS: usize = 8;

/// How many connections are remembered by their ids.
const REMEMBERED: usize = 64;

/// How a lane behaves.
#[derive(Clone, Debug)]
pub(crate) struct LaneSettings {
    /// What stands before the colon of a holder field.
    pub(crate) client_id: Arc<str>,
    /// How long an answer may take, and how long an operation waits for a connection.
    pub(crate) command_timeout: Duration,
    /// So many operations without an answer in a row, and the connection is given up.
    pub(crate) timeouts_before_reconnect: u32,
}

/// Names an operation while it is queued. Stays good when it moves to another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpToken(u64);

impl OpToken {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        OpToken(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A handle on a lane. It does not keep the lane open: [`close`](Lane::close) ends it.
pub(crate) struct Lane<T>(Arc<Shared<T>>);

impl<T> Clone for Lane<T> {
    fn clone(&self) -> Self {
        Lane(self.0.clone())
    }
}

struct Shared<T> {
    state: Mutex<State<T>>,
    waker: AtomicWaker,
    /// The driver is running or about to: it need not be woken.
    awake: AtomicBool,
    /// Since when it is about to; 0 when it is not.
    woken: AtomicU64,
    epoch: AtomicU64,
    connections: Mutex<VecDeque<(u64, i64)>>,
    listener: Arc<dyn Listener<T>>,
    fallback: OnceLock<Lane<T>>,
    ended: watch::Sender<bool>,
}

struct State<T> {
    queue: VecDeque<Queued<T>>,
    in_flight: BTreeMap<u64, Flight<T>>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// `close` was called.
    Closed,
    /// The runtime ended under it.
    Dead,
}

struct Queued<T> {
    token: OpToken,
    op: Op,
    tag: T,
    since: Moment,
}

struct Flight<T> {
    tag: T,
    handed: Moment,
    epoch: u64,
}

impl<T: Send + 'static> Lane<T> {
    /// Connects, and starts the lane's task on the current runtime. Dropping the future leaves nothing behind.
    pub(crate) async fn connect(
        endpoint: Endpoint,
        settings: LaneSettings,
        listener: Arc<dyn Listener<T>>,
    ) -> Result<Self, ConnectError> {
        let tuning = Tuning { command_timeout: settings.command_timeout, events: 64 };
        let dialled = connect::dial::<Client>(&endpoint, &tuning).await?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { queue: VecDeque::new(), in_flight: BTreeMap::new(), stage: Stage::Open }),
            waker: AtomicWaker::new(),
            awake: AtomicBool::new(true),
            woken: AtomicU64::new(0),
            epoch: AtomicU64::new(dialled.link.epoch),
            connections: Mutex::new(VecDeque::new()),
            listener,
            fallback: OnceLock::new(),
            ended: watch::Sender::new(false),
        });
        let name = endpoint.label.as_deref().map(connect::client_name);
        tokio::spawn(Driver::new(shared.clone(), dialled, settings, name));
        Ok(Lane(shared))
    }

    /// Queues an operation. From any thread; never blocks. Operations are written in the order in which they are queued.
    pub(crate) fn push(&self, op: Op, tag: T) -> OpToken {
        let token = OpToken::next();
        self.0.enqueue(Queued { token, op, tag, since: Moment::now() });
        token
    }

    /// Takes an operation back that is still queued: it is certainly not sent, and nothing is told of it.
    pub(crate) fn take_back(&self, token: OpToken) -> Option<T> {
        {
            let mut state = self.0.state.lock();
            if let Some(at) = state.queue.iter().position(|queued| queued.token == token) {
                return state.queue.remove(at).map(|queued| queued.tag);
            }
        }
        self.0.fallback.get()?.take_back(token)
    }

    /// The number of the present connection.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Acquire)
    }

    /// How the server calls connection number `epoch`, if it could be asked.
    pub(crate) fn connection_id(&self, epoch: u64) -> Option<i64> {
        let connections = self.0.connections.lock();
        connections.iter().find(|(e, _)| *e == epoch).map(|(_, id)| *id)
    }

    /// Hands everything that is still queued over to `other`, in order.
    pub(crate) fn move_queued_to(&self, other: &Lane<T>) {
        if Arc::ptr_eq(&self.0, &other.0) {
            return;
        }
        let left = {
            let mut state = self.0.state.lock();
            self.0.pass_on(&mut state.queue, &other.0)
        };
        for queued in left {
            other.0.refuse(queued);
        }
    }

    /// How long the operation has waited that is queued longest.
    #[cfg(test)]
    pub(crate) fn oldest_queued_age(&self) -> Option<Duration> {
        self.0.state.lock().queue.front().map(|queued| queued.since.until(Moment::now()))
    }

    /// Whether its task was woken longer than `limit` ago and has not run since.
    pub(crate) fn is_stalled(&self, limit: Duration) -> bool {
        let woken = self.0.woken.load(Ordering::Acquire);
        woken != 0 && Moment::from_bits(woken).until(Moment::now()) > limit
    }

    /// Whether anything is queued or without an answer.
    #[cfg(test)]
    pub(crate) fn has_pending(&self) -> bool {
        let state = self.0.state.lock();
        !state.queue.is_empty() || !state.in_flight.is_empty()
    }

    /// Gives up on what was sent longer than `limit` ago: told as unknown, now, by this thread. A later answer is dropped.
    pub(crate) fn overdue(&self, limit: Duration) {
        let now = Moment::now();
        let late: Vec<_> = {
            let mut state = self.0.state.lock();
            state.in_flight.extract_late(now, limit)
        };
        for flight in late {
            self.0.tell(flight, Err(Failure::Unknown(Trouble::Timeout)));
        }
    }

    /// Where operations go when this lane's runtime has ended. Set once; must not lead back here.
    pub(crate) fn set_fallback(&self, fallback: Lane<T>) {
        if !Arc::ptr_eq(&self.0, &fallback.0) {
            let _ = self.0.fallback.set(fallback);
        }
    }

    /// Whether its runtime has ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.0.state.lock().stage == Stage::Dead
    }

    /// Ends the lane: what is queued is refused now, what was sent may still be answered for a moment.
    pub(crate) fn close(&self) {
        let queued = {
            let mut state = self.0.state.lock();
            if state.stage != Stage::Open {
                return;
            }
            state.stage = Stage::Closed;
            std::mem::take(&mut state.queue)
        };
        for queued in queued {
            self.0.refuse(queued);
        }
        self.0.wake();
    }

    /// When its task is over.
    pub(crate) async fn closed(&self) {
        let mut ended = self.0.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

trait ExtractLate<T> {
    fn extract_late(&mut self, now: Moment, limit: Duration) -> Vec<Flight<T>>;
}

impl<T> ExtractLate<T> for BTreeMap<u64, Flight<T>> {
    fn extract_late(&mut self, now: Moment, limit: Duration) -> Vec<Flight<T>> {
        let late: Vec<u64> =
            self.iter().filter(|(_, flight)| flight.handed.until(now) > limit).map(|(token, _)| *token).collect();
        late.iter().filter_map(|token| self.remove(token)).collect()
    }
}

impl<T: Send + 'static> Shared<T> {
    fn enqueue(&self, queued: Queued<T>) {
        {
            let mut state = self.state.lock();
            if state.stage == Stage::Open {
                state.queue.push_back(queued);
                drop(state);
                return self.wake();
            }
            if state.stage == Stage::Dead
                && let Some(fallback) = self.fallback.get()
            {
                drop(state);
                return fallback.0.enqueue(queued);
            }
        }
        self.refuse(queued);
    }

    /// Moves a queue to another lane's end, or to the lane behind that. What comes back found no lane that takes it.
    /// The caller holds its own lane's lock, so that nothing overtakes on the way.
    fn pass_on(&self, queue: &mut VecDeque<Queued<T>>, other: &Shared<T>) -> VecDeque<Queued<T>> {
        if queue.is_empty() {
            return VecDeque::new();
        }
        let mut state = other.state.lock();
        match state.stage {
            Stage::Open => {
                state.queue.append(queue);
                drop(state);
                other.wake();
                VecDeque::new()
            }
            Stage::Dead if other.fallback.get().is_some_and(|next| !std::ptr::eq(&*next.0, self)) => {
                drop(state);
                let next = other.fallback.get().expect("seen just now");
                other.pass_on(queue, &next.0)
            }
            _ => std::mem::take(queue),
        }
    }

    fn wake(&self) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.woken.store(Moment::now().to_bits(), Ordering::Release);
            self.waker.wake();
        }
    }

    /// Tells that an operation was never sent because the lane is over.
    fn refuse(&self, queued: Queued<T>) {
        let trouble = match self.state.lock().stage {
            Stage::Dead => Trouble::Connection(runtime_ended()),
            _ => Trouble::Closed,
        };
        self.not_sent(queued, trouble);
    }

    fn not_sent(&self, queued: Queued<T>, trouble: Trouble) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let flight = Flight { tag: queued.tag, handed: Moment::now(), epoch };
        self.tell(flight, Err(Failure::NotSent(trouble)));
    }

    fn tell(&self, flight: Flight<T>, result: Result<Reply, Failure>) {
        let last_epoch = self.epoch.load(Ordering::Acquire);
        let answer = Answer { result, handed: flight.handed, first_epoch: flight.epoch, last_epoch };
        self.listener.answered(flight.tag, answer);
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the runtime of the connection ended")]
struct RuntimeEnded;

fn runtime_ended() -> Source {
    Arc::new(RuntimeEnded)
}

/// What a future of the driver ends with.
enum Done {
    Op(OpToken, Result<Reply, Failure>),
    ConnectionId {
        epoch: u64,
        id: Option<i64>,
    },
    /// The answer to a PING.
    Alive(Result<(), FredError>),
    /// A new connection was asked for.
    Renewed(Result<(), FredError>),
    /// Something happened to the connection.
    Event,
    /// Time has passed.
    Tick {
        idle: bool,
    },
    RouterEnded(Option<FredError>),
    Restart,
    Quit,
    Nothing,
}

/// A lane's task.
struct Driver<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    client: Client,
    link: Link,
    settings: LaneSettings,
    name: Option<String>,
    /// Everything that is waited for. Nothing in it is dropped while the client lives.
    waiting: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Ended in the first poll; to be worked off.
    ready: Vec<Done>,
    /// Kept between polls for its memory.
    batch: Vec<(OpToken, Op)>,
    /// Timeouts in a row.
    timeouts: u32,
    /// An answer came since the last idle tick.
    heard: bool,
    pinging: bool,
    renewing: bool,
    fast_tick: bool,
    /// Nothing was handed over yet.
    fresh: bool,
    quitting: bool,
    over: bool,
}

impl<T: Send + 'static> Driver<T> {
    fn new(shared: Arc<Shared<T>>, dialled: Dialled<Client>, settings: LaneSettings, name: Option<String>) -> Self {
        let Dialled { client, link, router } = dialled;
        let driver = Driver {
            shared,
            client,
            link,
            settings,
            name,
            waiting: FuturesUnordered::new(),
            ready: Vec::new(),
            batch: Vec::new(),
            timeouts: 0,
            heard: true,
            pinging: false,
            renewing: false,
            fast_tick: false,
            fresh: true,
            quitting: false,
            over: false,
        };
        driver.waiting.push(Box::pin(watch_router(router)));
        driver.waiting.push(Box::pin(tick(LIVENESS, true)));
        driver.watch();
        driver
    }

    fn watch(&self) {
        let event = Link::watch(&self.client);
        self.waiting.push(Box::pin(async move {
            event.await;
            Done::Event
        }));
    }

    /// Hands a command over now: it is in fred's queue when this returns.
    fn hand(&mut self, cx: &mut Context<'_>, mut call: BoxFuture<'static, Done>) {
        match call.as_mut().poll(cx) {
            Poll::Ready(done) => self.ready.push(done),
            Poll::Pending => self.waiting.push(call),
        }
    }

    /// What every new connection begins with.
    fn greet(&mut self, cx: &mut Context<'_>) {
        let epoch = self.link.epoch;
        if let Some(name) = self.name.clone() {
            let command = Command::new("CLIENT", vec![Value::from("SETNAME"), Value::from(name)]);
            let sent = send(&self.client, command);
            self.hand(
                cx,
                Box::pin(async move {
                    trace_failed("CLIENT SETNAME", sent.await);
                    Done::Nothing
                }),
            );
        }
        let sent = send(&self.client, Command::new("CLIENT", vec![Value::from("ID")]));
        self.hand(
            cx,
            Box::pin(async move {
                let id = match sent.await {
                    Ok(Frame::Number { data, .. }) => Some(data),
                    other => {
                        trace_failed("CLIENT ID", other);
                        None
                    }
                };
                Done::ConnectionId { epoch, id }
            }),
        );
    }

    /// So that the first operations need not send whole scripts. A server that forbids it gets those.
    fn preload(&mut self, cx: &mut Context<'_>) {
        for script in script::ALL {
            let args = vec![Value::from_static_str("LOAD"), Value::from_static_str(script.source)];
            let sent = send(&self.client, Command::new("SCRIPT", args));
            self.hand(
                cx,
                Box::pin(async move {
                    trace_failed(script.name, sent.await);
                    Done::Nothing
                }),
            );
        }
    }

    /// Takes in what happened to the connection.
    fn look(&mut self, cx: &mut Context<'_>) {
        let was_up = self.link.up;
        if self.link.look() {
            self.shared.epoch.store(self.link.epoch, Ordering::Release);
            self.renewing = false;
            self.timeouts = 0;
            tracing::debug!(connection = self.link.epoch, "connected again");
            self.greet(cx);
            self.shared.listener.connected();
        } else if was_up && !self.link.up {
            tracing::debug!(connection = self.link.epoch, error = ?self.link.error, "connection lost");
        }
    }

    /// Hands everything that is queued to fred, in order.
    fn hand_over(&mut self, cx: &mut Context<'_>) {
        if !self.link.up || self.quitting {
            return;
        }
        let epoch = self.link.epoch;
        let mut batch = std::mem::take(&mut self.batch);
        {
            let mut state = self.shared.state.lock();
            if state.queue.is_empty() {
                self.batch = batch;
                return;
            }
            // One reading for all of them: too early is the safe side.
            let handed = Moment::now();
            let State { queue, in_flight, .. } = &mut *state;
            for queued in queue.drain(..) {
                in_flight.insert(queued.token.0, Flight { tag: queued.tag, handed, epoch });
                batch.push((queued.token, queued.op));
            }
        }
        for (token, op) in batch.drain(..) {
            let call = call(&self.client, &self.settings.client_id, token, op);
            self.hand(cx, call);
        }
        self.batch = batch;
    }

    fn complete(&mut self, cx: &mut Context<'_>, done: Done) {
        match done {
            Done::Op(token, result) => {
                // Whatever connection the answer came on is known by now.
                self.look(cx);
                let Some(flight) = self.shared.state.lock().in_flight.remove(&token.0) else { return };
                match &result {
                    Err(Failure::Unknown(Trouble::Timeout)) if flight.epoch == self.link.epoch => self.timed_out(cx),
                    Ok(_) | Err(Failure::Refused(_)) => self.alive(),
                    Err(_) => {}
                }
                self.shared.tell(flight, result);
            }
            Done::ConnectionId { epoch, id } => {
                self.look(cx);
                if let Some(id) = id
                    && epoch == self.link.epoch
                {
                    let mut connections = self.shared.connections.lock();
                    connections.push_back((epoch, id));
                    if connections.len() > REMEMBERED {
                        connections.pop_front();
                    }
                }
            }
            Done::Alive(result) => {
                self.pinging = false;
                match result {
                    Ok(()) => {
                        self.alive();
                        self.link.up = true;
                    }
                    Err(_) if self.link.up => self.renew(cx),
                    Err(_) => {}
                }
            }
            Done::Renewed(result) => {
                self.renewing = false;
                self.look(cx);
                if let Err(error) = result {
                    tracing::debug!(%error, "no new connection yet");
                }
            }
            Done::Event => {
                // Hanging up closes what is watched.
                if !self.quitting {
                    self.watch();
                }
                self.look(cx);
            }
            Done::Tick { idle: true } => {
                if !self.heard && !self.pinging {
                    self.ping(cx);
                }
                self.heard = false;
                self.waiting.push(Box::pin(tick(LIVENESS, true)));
            }
            Done::Tick { idle: false } => {
                self.fast_tick = false;
                if !self.link.up {
                    self.expire();
                    // In case the news of the connection's return got lost.
                    if self.client.is_connected() && !self.renewing && !self.pinging {
                        self.ping(cx);
                    }
                }
            }
            Done::RouterEnded(error) => {
                if !self.quitting {
                    tracing::warn!(error = error.as_ref().map(tracing::field::display), "the connection's task ended");
                    self.link.up = false;
                    self.renewing = false;
                    if let Some(error) = error {
                        self.link.error = Some(Arc::new(error));
                    }
                    self.waiting.push(Box::pin(async {
                        tokio::time::sleep(RESTART).await;
                        Done::Restart
                    }));
                }
            }
            Done::Restart => {
                if !self.quitting {
                    self.waiting.push(Box::pin(watch_router(Router::start(&self.client))));
                }
            }
            Done::Quit => self.over = true,
            Done::Nothing => {}
        }
    }

    fn alive(&mut self) {
        self.timeouts = 0;
        self.heard = true;
    }

    fn timed_out(&mut self, cx: &mut Context<'_>) {
        self.timeouts += 1;
        if self.timeouts >= self.settings.timeouts_before_reconnect {
            self.renew(cx);
        }
    }

    fn ping(&mut self, cx: &mut Context<'_>) {
        self.pinging = true;
        let sent = send(&self.client, Command::new("PING", Vec::new()));
        // An error reply is an answer too.
        self.hand(cx, Box::pin(async move { Done::Alive(sent.await.map(drop)) }));
    }

    /// Gives the connection up for a new one.
    fn renew(&mut self, cx: &mut Context<'_>) {
        self.link.up = false;
        if self.renewing || self.quitting {
            return;
        }
        tracing::debug!(connection = self.link.epoch, "no answers: connecting anew");
        self.renewing = true;
        self.timeouts = 0;
        let client = self.client.clone();
        self.hand(cx, Box::pin(async move { Done::Renewed(client.force_reconnection().await) }));
    }

    /// Refuses what has waited for a connection as long as it may.
    fn expire(&mut self) {
        let now = Moment::now();
        let mut expired = Vec::new();
        {
            let mut state = self.shared.state.lock();
            while let Some(first) = state.queue.front() {
                if first.since.until(now) < self.settings.command_timeout {
                    break;
                }
                expired.extend(state.queue.pop_front());
            }
        }
        for queued in expired {
            let trouble = self.link.error.clone().map_or(Trouble::Timeout, Trouble::Connection);
            self.shared.not_sent(queued, trouble);
        }
    }

    fn run(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.waker.register(cx.waker());
        if std::mem::take(&mut self.fresh) {
            self.greet(cx);
            self.preload(cx);
        }
        for _ in 0..ROUNDS {
            self.shared.awake.store(true, Ordering::Release);
            self.shared.woken.store(0, Ordering::Release);
            self.look(cx);
            self.hand_over(cx);
            loop {
                while let Some(done) = self.ready.pop() {
                    self.complete(cx, done);
                }
                match self.waiting.poll_next_unpin(cx) {
                    Poll::Ready(Some(done)) => self.complete(cx, done),
                    Poll::Ready(None) | Poll::Pending => break,
                }
            }
            if self.over {
                return Poll::Ready(());
            }
            self.shared.awake.store(false, Ordering::SeqCst);
            let (idle, stage) = {
                let state = self.shared.state.lock();
                (state.queue.is_empty(), state.stage)
            };
            if stage == Stage::Closed && !self.quitting {
                self.quit(cx);
                continue;
            }
            if !idle && self.link.up {
                continue;
            }
            if !idle && !self.fast_tick {
                self.fast_tick = true;
                let soon =
                    (self.settings.command_timeout / 10).clamp(Duration::from_millis(5), Duration::from_millis(50));
                self.waiting.push(Box::pin(tick(soon, false)));
                continue;
            }
            return Poll::Pending;
        }
        // There is more, but others are to run too.
        self.shared.awake.store(true, Ordering::Release);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn quit(&mut self, cx: &mut Context<'_>) {
        self.quitting = true;
        let client = self.client.clone();
        self.hand(
            cx,
            Box::pin(async move {
                let _ = tokio::time::timeout(QUIT, client.quit()).await;
                Done::Quit
            }),
        );
    }
}

impl<T: Send + 'static> Future for Driver<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().run(cx)
    }
}

impl<T: Send + 'static> Unpin for Driver<T> {}

impl<T: Send + 'static> Drop for Driver<T> {
    /// The end: asked for, or with the runtime.
    fn drop(&mut self) {
        let shared = &self.shared;
        let (in_flight, left, dead) = {
            let mut state = shared.state.lock();
            if state.stage == Stage::Open {
                state.stage = Stage::Dead;
            }
            let dead = state.stage == Stage::Dead;
            let mut queue = std::mem::take(&mut state.queue);
            let left = match shared.fallback.get() {
                Some(fallback) if dead => shared.pass_on(&mut queue, &fallback.0),
                _ => queue,
            };
            (std::mem::take(&mut state.in_flight), left, dead)
        };
        // Nobody wakes it any more.
        shared.awake.store(true, Ordering::Release);
        shared.woken.store(0, Ordering::Release);
        for flight in in_flight.into_values() {
            let trouble = if dead { Trouble::Connection(runtime_ended()) } else { Trouble::Closed };
            shared.tell(flight, Err(Failure::Unknown(trouble)));
        }
        for queued in left {
            shared.refuse(queued);
        }
        shared.ended.send_replace(true);
        if dead {
            shared.listener.ended();
        }
    }
}

async fn tick(after: Duration, idle: bool) -> Done {
    tokio::time::sleep(after).await;
    Done::Tick { idle }
}

async fn watch_router(mut router: Router) -> Done {
    Done::RouterEnded(router.ended().await)
}

fn trace_failed(what: &str, result: Result<Frame, FredError>) {
    match result {
        Ok(frame) => {
            if let Some(refusal) = codec::error_of(&frame) {
                tracing::debug!(what, reason = %refusal.message, "refused");
            }
        }
        Err(error) => tracing::debug!(what, %error, "failed"),
    }
}

/// One command. It enters fred's queue in the first poll. `Err` is fred's, never the server's.
fn send(client: &Client, command: Command) -> impl Future<Output = Result<Frame, FredError>> + Send + 'static {
    let client = client.clone();
    async move {
        let (command, args) = command.into_parts();
        client.custom_raw(command, args).await
    }
}

/// One operation: one command, and a second one only if the server did not know the script.
fn call(client: &Client, client_id: &Arc<str>, token: OpToken, op: Op) -> BoxFuture<'static, Done> {
    let first = send(client, codec::command(&op, client_id, false));
    if let Op::Inspect { name } = &op {
        let beside = Command::new("PUBSUB", vec![Value::from("NUMSUB"), Value::from(name.channel())]);
        let beside = send(client, beside);
        let client = client.clone();
        let client_id = client_id.clone();
        return Box::pin(async move {
            let (frame, heard_by) = futures::join!(first, beside);
            let mut result = finish(&client, &client_id, &op, frame).await;
            if let Ok(Reply::Inspected { subscribers, .. }) = &mut result {
                *subscribers = heard_by.ok().as_ref().and_then(codec::subscribers);
            }
            Done::Op(token, result)
        });
    }
    let client = client.clone();
    let client_id = client_id.clone();
    Box::pin(async move {
        let frame = first.await;
        Done::Op(token, finish(&client, &client_id, &op, frame).await)
    })
}

async fn finish(client: &Client, client_id: &str, op: &Op, frame: Result<Frame, FredError>) -> Result<Reply, Failure> {
    let frame = match frame {
        Ok(frame) if codec::is_unknown_script(&frame) => send(client, codec::command(op, client_id, true)).await,
        other => other,
    };
    match frame {
        Ok(frame) => codec::reply(op, frame),
        Err(error) => Err(codec::failure(error)),
    }
}
