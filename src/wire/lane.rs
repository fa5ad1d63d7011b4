//! One ordered queue of operations over one connection: the handle.
//!
//! An operation is queued, then sent, then answered. Whoever pushes only puts it into the queue, from any thread; the
//! lane's task, the [`Driver`], hands it to fred and hears the answer. What becomes of an operation is told once, to the
//! [`Listener`]. Only a queued operation can be taken back, or move to another lane.
//!
//! This room may not know how an operation is written or a connection is kept: that is `driver`'s.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fred::clients::Client;

use super::connect::{self, Endpoint, Tuning};
use super::driver::Driver;
use super::op::{Failure, Listener, Op, Trouble};
use super::queue::{Flight, Queued, Shared, Stage};
use crate::clock::Moment;
use crate::error::ConnectError;

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
pub(crate) struct OpToken(pub(super) u64);

impl OpToken {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        OpToken(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A handle on a lane. It does not keep the lane open: [`close`](Lane::close) ends it.
pub(crate) struct Lane<T>(pub(super) Arc<Shared<T>>);

impl<T> Clone for Lane<T> {
    fn clone(&self) -> Self {
        Lane(self.0.clone())
    }
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
        let shared = Arc::new(Shared::new(dialled.link.epoch, listener));
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
        self.0.connection_id(epoch)
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
        let late = take_late(&mut self.0.state.lock().in_flight, now, limit);
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

fn take_late<T>(in_flight: &mut BTreeMap<u64, Flight<T>>, now: Moment, limit: Duration) -> Vec<Flight<T>> {
    let late: Vec<u64> =
        in_flight.iter().filter(|(_, flight)| flight.handed.until(now) > limit).map(|(token, _)| *token).collect();
    late.iter().filter_map(|token| in_flight.remove(token)).collect()
}
