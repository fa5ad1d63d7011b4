//! The machinery between the face and the wire: what is held, who waits, what is renewed.
//!
//! One [`State`] under one lock, changed by events (a call, an answer, a message, a timer, a drop) and never across an
//! await. Operations leave it in order; answers come back through [`Engine::answered`]. Timers, renewals and everything
//! that must go on without the caller's runtime live on the keeper's thread (`keeper`).
//!
//! | file | what |
//! |---|---|
//! | `state` | the data |
//! | `acquire` | from a call to a hold, and what happens when the caller goes away |
//! | `reentry` | nested holds and the server's count |
//! | `wait` | queue, contender, messages, giving way |
//! | `watchdog` | renewal and loss |
//! | `release` | from a hold to a free key, and retries |
//! | `doubt` | acquires of which nobody knows whether they were executed |
//! | `closing` | the end of a client |
//! | `keeper` | the thread: timer wheel |
//! | `io` | how state reaches the lanes and the clock |
//! | `failure` | what failures mean |
//! | `post` | how the wire reaches the state |
//! | `call`, `hold` | what a caller's future, a guard and the engine share |

mod acquire;
pub(crate) mod call;
mod closing;
mod doubt;
mod failure;
pub(crate) mod hold;
mod io;
mod keeper;
mod post;
mod reentry;
mod release;
mod state;
#[cfg(test)]
mod tests;
mod wait;
mod watchdog;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::call::{Call, Grant};
pub(crate) use self::io::Io;
use self::post::Post;
use self::state::{After, State, Timer};
use crate::clock::Moment;
use crate::config::Config;
use crate::error::{ConnectError, Error, ShutdownError};
use crate::lease::Lease;
use crate::names::LockName;
use crate::owner::Owner;
use crate::stats::Stats;
use crate::wire::{Answer, Failure, Lane, Op, Reply, ThreadId};

/// How long a key that nobody waits for keeps its subscription.
const LINGER: Duration = Duration::from_millis(500);

/// How long local waiters keep out when it is others' turn.
const GRACE: Duration = Duration::from_millis(2);

/// Whose answer it is.
#[derive(Debug)]
pub(crate) enum Tag {
    Ask(ThreadId),
    Settle(ThreadId),
    Free(ThreadId),
    Kill(ThreadId),
    Check(ThreadId),
    Renew(Vec<ThreadId>),
    Extend(ThreadId, Lease, oneshot::Sender<Result<(), Error>>),
    Query(oneshot::Sender<Result<Reply, Failure>>),
}

/// The engine of one client.
pub(crate) struct Engine {
    state: Mutex<State>,
    /// Answers that came while the state was in use; whoever frees it works them off.
    mail: Mutex<VecDeque<(Tag, Answer)>>,
    pub(crate) io: Io,
}

impl Engine {
    /// Connects everything. Dropping the future leaves nothing behind.
    pub(crate) async fn connect(config: Config) -> Result<Arc<Self>, ConnectError> {
        config.check()?;
        let engine = Arc::new(Engine {
            state: Mutex::new(State::new()),
            mail: Mutex::new(VecDeque::new()),
            io: Io::new(config),
        });
        let mut unfinished = CloseOnDrop(Some(engine.clone()));
        let keeper = keeper::start(&engine);
        if tokio::runtime::Handle::try_current().is_ok() {
            let lane = Lane::connect(engine.io.endpoint("main"), engine.io.main_settings(), engine.listener()).await?;
            engine.io.set_main(lane);
        }
        keeper.await.map_err(|_| ConnectError::config("the client's thread ended while connecting"))??;
        engine.io.join_lanes();
        unfinished.0 = None;
        Ok(engine)
    }

    fn listener(self: &Arc<Self>) -> Arc<Post> {
        Arc::new(Post::new(self))
    }

    /// Runs `f` on the state, then works off the mail and what is to be told to others.
    fn with<R>(&self, f: impl FnOnce(&mut State, &Io) -> R) -> R {
        let mut state = self.state.lock();
        let result = f(&mut state, &self.io);
        self.finish(state);
        result
    }

    fn finish<'a>(&'a self, mut state: parking_lot::MutexGuard<'a, State>) {
        loop {
            loop {
                let Some((tag, answer)) = self.mail.lock().pop_front() else { break };
                state.on_answer(&self.io, tag, answer);
            }
            state.compact_timers();
            let after = std::mem::take(&mut state.after);
            drop(state);
            for told in after {
                match told {
                    After::Wake(waker) => waker.wake(),
                    After::Unlocked(sender, result) => drop(sender.send(result)),
                }
            }
            // Mail that came in the meantime, from somebody who found the state in use.
            if self.mail.lock().is_empty() {
                return;
            }
            match self.state.try_lock() {
                Some(again) => state = again,
                None => return,
            }
        }
    }

    pub(crate) fn begin(&self, call: &Arc<Call>) {
        self.with(|state, io| state.begin(io, call));
    }

    /// The caller's future is gone.
    pub(crate) fn cancel(&self, call: &Arc<Call>) {
        self.with(|state, io| match call.abandon() {
            Some(grant) => state.leave(io, grant.thread, grant.watched, None),
            None => state.withdraw(io, call),
        });
        self.drain_after_end();
    }

    /// Releases one hold; the receiver hears how it ended, if the hold was still there to be released.
    pub(crate) fn leave(&self, grant: &Grant, waiter: Option<oneshot::Sender<Result<(), Error>>>) {
        let awaited = waiter.is_some();
        self.with(|state, io| state.leave(io, grant.thread, grant.watched, waiter));
        if !awaited {
            self.drain_after_end();
        }
    }

    pub(crate) fn unlock_forgotten(&self, name: &Arc<LockName>, owner: Owner) -> oneshot::Receiver<Result<(), Error>> {
        let (sender, receiver) = oneshot::channel();
        self.with(|state, io| state.unlock_forgotten(io, name, owner, sender));
        receiver
    }

    /// Keeps a hold without its guard.
    pub(crate) fn forget(&self, grant: &Grant) {
        self.with(|state, _| {
            if let Some(hold) = state.holds.get_mut(&grant.thread) {
                hold.forgotten.push(grant.watched);
            }
        });
    }

    /// Gives an outermost hold an owner of its own; `None` if it is nested or somebody is about to join it.
    pub(crate) fn detach(&self, grant: &Grant) -> Option<Owner> {
        self.with(|state, _| {
            let owner = Owner::new();
            match state.holds.get_mut(&grant.thread) {
                Some(hold) if hold.live() > 1 => return None,
                Some(hold) => hold.owner = owner,
                None => {}
            }
            Some(owner)
        })
    }

    /// The holder field of `owner` on `name`, if it certainly holds it.
    pub(crate) fn held_by(&self, name: &LockName, owner: Owner) -> Option<ThreadId> {
        self.with(|state, _| state.held_by(name, owner))
    }

    pub(crate) fn extend(
        &self,
        name: &Arc<LockName>,
        thread: ThreadId,
        lease: Lease,
    ) -> oneshot::Receiver<Result<(), Error>> {
        let (sender, receiver) = oneshot::channel();
        self.with(|_, io| {
            io.push(Op::Renew { holds: vec![(name.clone(), thread)], lease }, Tag::Extend(thread, lease, sender));
        });
        receiver
    }

    /// One question to the server.
    pub(crate) async fn query(&self, name: &Arc<LockName>, op: Op) -> Result<Reply, Error> {
        let closed = || Error::Closed { lock: name.given().into() };
        let (sender, receiver) = oneshot::channel();
        self.with(|state, io| {
            if state.closed {
                return Err(closed());
            }
            io.push(op, Tag::Query(sender));
            state.timers.add(io, Moment::now().after(keeper::TICK), Timer::Alarm);
            Ok(())
        })?;
        match receiver.await {
            Ok(answer) => answer.map_err(|failure| self.io.error(name, &failure)),
            Err(_) => Err(closed()),
        }
    }

    /// The key was removed by force: whoever of this process holds it is to know at once.
    pub(crate) fn check_holder(&self, name: &Arc<LockName>) {
        self.with(|state, io| {
            if let Some(thread) = state.keys.get(name).and_then(|key| key.active) {
                io.push(Op::HoldCount { name: name.clone(), thread }, Tag::Check(thread));
            }
            state.nudge(io, name);
        });
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.io.stats.snapshot();
        self.with(|state, _| {
            stats.waiting = state.keys.values().map(|key| key.queue.len() as u64).sum();
            for hold in state.holds.values() {
                match hold.phase {
                    state::Phase::Held => stats.held += 1,
                    state::Phase::Doubtful(_) => stats.doubtful += 1,
                    _ => {}
                }
            }
        });
        stats
    }

    /// Ends everything in an orderly way. See [`LockClient::shutdown`](crate::LockClient::shutdown).
    pub(crate) async fn shutdown(&self, within: Duration, keep_holds: bool) -> Result<(), ShutdownError> {
        let _one_at_a_time = self.io.shutting_down.lock().await;
        if let Some(result) = self.io.shut_down.get() {
            return result.clone();
        }
        self.with(|state, io| state.close(io, keep_holds));
        let deadline = Moment::now().after(within);
        self.with(|state, io| state.timers.add(io, deadline, Timer::Alarm));
        let unconfirmed = loop {
            let drained = self.io.drained_async.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            let unconfirmed = self.with(|state, _| state.unreleased());
            if unconfirmed.is_empty() || Moment::now() >= deadline {
                break unconfirmed;
            }
            drained.await;
        };
        let result = if unconfirmed.is_empty() { Ok(()) } else { Err(ShutdownError { unconfirmed }) };
        let _ = self.io.shut_down.set(result.clone());
        self.with(|state, _| state.give_up());
        self.io.end();
        result
    }

    /// The caller's runtime has just ended, perhaps because the program does: what is being released gets a moment to be.
    /// All such moments together are one drain timeout.
    fn drain_after_end(&self) {
        let Some(until) = self.io.drain_until() else { return };
        let mut state = self.state.lock();
        while state.is_releasing() && self.io.keeper_lives() {
            if self.io.drained.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        self.finish(state);
    }

    /// The last handle is gone: waits for what is still to be released, a moment at most, not at all when there is nothing.
    pub(crate) fn close_blocking(&self) {
        if self.io.shut_down.get().is_some() {
            return;
        }
        self.with(|state, io| {
            state.close(io, false);
            if !state.holds.is_empty() {
                io.leave_main();
                state.resend_releases(io);
            }
        });
        let mut state = self.state.lock();
        let until = std::time::Instant::now() + self.io.config.drain_timeout;
        while !state.holds.is_empty() && self.io.keeper_lives() {
            if self.io.drained.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        self.finish(state);
        self.io.end();
    }
}

/// Closes an engine whose connecting was given up.
struct CloseOnDrop(Option<Arc<Engine>>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            engine.io.end();
            engine.io.close_main();
        }
    }
}

impl State {
    fn on_answer(&mut self, io: &Io, tag: Tag, answer: Answer) {
        match tag {
            Tag::Ask(thread) => self.answered_ask(io, thread, answer),
            Tag::Settle(thread) => self.answered_settle(io, thread, answer),
            Tag::Free(thread) => self.answered_free(io, thread, answer),
            Tag::Kill(thread) => self.answered_kill(io, thread, &answer),
            Tag::Check(thread) => self.answered_check(io, thread, &answer),
            Tag::Renew(threads) => self.answered_renew(io, &threads, answer),
            Tag::Extend(thread, lease, sender) => {
                let result = self.answered_extend(io, thread, lease, answer);
                self.after.push(After::Unlocked(sender, result));
            }
            Tag::Query(sender) => drop(sender.send(answer.result)),
        }
    }
}
