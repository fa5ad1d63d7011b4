//! The client's own thread: the timer wheel, the watchdog's and the subscriber's connections, and every operation once the
//! caller's runtime is gone. It sleeps while nothing is held and nobody waits.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::oneshot;
use tokio_util::time::DelayQueue;

use super::Engine;
use super::state::Timer;
use crate::clock::Moment;
use crate::error::ConnectError;
use crate::wire::{Lane, Subscriber};

/// How often it looks around while anything is held: for a suspend, for a runtime that is not driven.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// A jump of the clock that counts suspend against the one that does not.
const SUSPENDED: Duration = Duration::from_millis(200);

/// What others tell the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A lane has a connection (again).
    Connected,
}

/// Starts the thread. The receiver hears when its connections are there.
pub(super) fn start(engine: &Arc<Engine>) -> oneshot::Receiver<Result<(), ConnectError>> {
    let (report, receiver) = oneshot::channel();
    let engine = engine.clone();
    let spawned = std::thread::Builder::new().name("redisson-lock".into()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = report.send(Err(ConnectError::config(format!("no runtime for the client's thread: {error}"))));
                return engine.io.keeper_ends();
            }
        };
        runtime.block_on(run(&engine, report));
        engine.io.keeper_ends();
    });
    if let Err(error) = spawned {
        // The closure, and with it the sender, is gone: the receiver hears of that.
        tracing::warn!(%error, "the client's thread cannot be started");
    }
    receiver
}

async fn run(engine: &Arc<Engine>, report: oneshot::Sender<Result<(), ConnectError>>) {
    let connected = tokio::select! {
        connected = connect(engine) => connected,
        () = ended(engine) => return,
    };
    let failed = connected.is_err();
    if report.send(connected).is_err() || failed {
        return engine.io.hang_up().await;
    }
    let mut wheel = Wheel::new();
    while !engine.io.is_ending() {
        wheel.turn(engine);
        tokio::select! {
            () = engine.io.keeper_called() => {}
            () = wheel.wait() => {}
        }
    }
    engine.io.hang_up().await;
}

async fn ended(engine: &Arc<Engine>) {
    while !engine.io.is_ending() {
        engine.io.keeper_called().await;
    }
}

async fn connect(engine: &Arc<Engine>) -> Result<(), ConnectError> {
    let io = &engine.io;
    let lane = Lane::connect(io.endpoint("keeper"), io.own_settings(), engine.listener()).await?;
    let subscriber = Subscriber::connect(io.endpoint("subscriber"), engine.listener()).await?;
    io.set_own(lane, subscriber);
    Ok(())
}

/// The one timer wheel.
struct Wheel {
    queue: DelayQueue<(Moment, Timer)>,
    due: Vec<(Moment, Timer)>,
    tick: Option<tokio::time::Instant>,
    /// The two clocks at the last turn.
    clocks: (Moment, std::time::Instant),
}

impl Wheel {
    fn new() -> Self {
        Wheel {
            queue: DelayQueue::new(),
            due: Vec::new(),
            tick: None,
            clocks: (Moment::now(), std::time::Instant::now()),
        }
    }

    /// Until something is due.
    async fn wait(&mut self) {
        let tick = self.tick;
        let tick = async move {
            match tick {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            expired = self.queue.next(), if !self.queue.is_empty() => {
                self.due.extend(expired.map(|e| e.into_inner()));
            }
            () = tick => {}
        }
    }

    /// One round: takes what is due from the wheel and the inbox, acts on it, and says when it wakes next.
    fn turn(&mut self, engine: &Arc<Engine>) {
        while let Some(Some(expired)) = futures::FutureExt::now_or_never(self.queue.next()) {
            self.due.push(expired.into_inner());
        }
        let now = Moment::now();
        let mono = std::time::Instant::now();
        let slept = self.clocks.0.until(now).saturating_sub(mono - self.clocks.1) > SUSPENDED;
        self.clocks = (now, mono);
        let news = engine.io.take_news();
        engine.io.check_main();
        engine.with(|state, io| {
            if news.contains(&News::Connected) {
                state.retry_failed(io);
                state.renew_failed_now(io, now);
            }
            if slept {
                state.woke_from_suspend(io, now);
            }
            let mut renew = Vec::new();
            // What is done may add timers that are due already.
            loop {
                let mut timers = std::mem::take(&mut self.due);
                timers.append(&mut state.timers.take());
                if timers.is_empty() {
                    break;
                }
                for (at, timer) in timers {
                    if !state.is_live(&timer) {
                        continue;
                    }
                    if at > now {
                        self.queue.insert((at, timer), now.until(at).min(MAX_DELAY));
                        continue;
                    }
                    match timer {
                        Timer::Hold(thread) => state.look_at_hold(io, thread, now, &mut renew),
                        Timer::Key(name) => state.look_at_key(io, &name, now),
                        Timer::Linger(name) => state.look_at_idle_key(io, &name, now),
                        Timer::Wait(call) => {
                            if let Some(call) = call.upgrade() {
                                state.look_at_call(io, &call, now);
                            }
                        }
                        Timer::Alarm => io.drained_async.notify_waiters(),
                    }
                }
            }
            state.renew(io, &renew);
            self.tick = (!state.holds.is_empty()).then(|| tokio::time::Instant::now() + TICK);
            state.timers.next_wake = self.next_wake(now);
        });
    }

    fn next_wake(&self, now: Moment) -> Option<Moment> {
        let first = self.queue.peek().map(|key| self.queue.deadline(&key));
        let next = match (first, self.tick) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        next.map(|at| now.after(at.saturating_duration_since(tokio::time::Instant::now())))
    }
}

/// The wheel reaches about two years; a timer that comes back early is put in again.
const MAX_DELAY: Duration = Duration::from_secs(86_400);
