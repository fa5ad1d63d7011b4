//! How the wire reaches the state: answers, messages, news of connections.

use std::sync::{Arc, Weak};

use super::{Engine, Tag, keeper};
use crate::names::LockName;
use crate::wire::{Answer, Heard, Listener, Refusal};

/// Where the wire delivers to. Does not keep the engine alive.
pub(super) struct Post(Weak<Engine>);

impl Post {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Post(Arc::downgrade(engine))
    }
}

impl Listener<Tag> for Post {
    fn answered(&self, tag: Tag, answer: Answer) {
        let Some(engine) = self.0.upgrade() else { return };
        engine.mail.lock().push_back((tag, answer));
        if let Some(state) = engine.state.try_lock() {
            engine.finish(state);
        }
    }

    fn connected(&self) {
        if let Some(engine) = self.0.upgrade() {
            engine.io.call_keeper(keeper::News::Connected);
        }
    }

    fn ended(&self) {
        if let Some(engine) = self.0.upgrade() {
            engine.io.main_ended();
            engine.drain_after_end();
        }
    }
}

impl Heard for Post {
    fn message(&self, channel: &str) {
        if let Some(engine) = self.0.upgrade() {
            engine.with(|state, io| state.heard(io, channel));
        }
    }

    fn confirmed(&self, names: &[Arc<LockName>]) {
        if let Some(engine) = self.0.upgrade() {
            engine.with(|state, io| names.iter().for_each(|name| state.confirmed(io, name)));
        }
    }

    fn resubscribed(&self) {
        if let Some(engine) = self.0.upgrade() {
            engine.with(|state, io| state.look_everywhere(io));
        }
    }

    fn refused(&self, names: &[Arc<LockName>], reason: &Refusal) {
        if let Some(engine) = self.0.upgrade() {
            for name in names {
                engine.io.warn_refused(name, reason);
            }
            engine.with(|state, io| names.iter().for_each(|name| state.refused(io, name)));
        }
    }
}
